"""What TLC is asked about docs/model: bounds, rules, and the bugs that are planted to see each rule fail."""

from __future__ import annotations

from dataclasses import dataclass, replace

JOURNAL_RULES = (
    "S1", "S2", "S3", "S4", "S5", "S6", "S7a", "S7b", "S9", "S10", "S11", "S12", "S13", "S15", "D1", "D2", "D3",
    "Effects",
)  # fmt: skip
"""Rules of steps, in Journal.tla: checked on the protocol and on recorded runs."""
STATE_RULES = ("S7c", "S14")
"""Rules of states, in Rota.tla."""
LIVENESS_RULES = ("L3", "L7")
SITUATIONS = ("NeverMoves", "NeverTakenOver", "NeverLate")
"""Denials of what TLC has to reach, in Rota.tla: it has to find each of them violated."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of the protocol TLC looks at. The names are those of the constants in Rota.tla."""

    replicas: int = 2
    members: int = 2
    partitions: int = 1
    cooperative: bool = False
    max_gen: int = 2
    max_commits: int = 0
    writes: bool = False
    max_ahead: int = 1
    max_faults: int = 1
    bug: str = "none"

    def configuration(self, *rules: str) -> str:
        """The configuration for rules of steps and of states; all of them if none is named."""
        return self._written("Spec", rules or JOURNAL_RULES + STATE_RULES) + "SYMMETRY Alike\nVIEW Identity\n"

    def fair_configuration(self, *rules: str) -> str:
        """The configuration for liveness, which allows neither symmetry nor a view."""
        return self._written("FairSpec", rules or LIVENESS_RULES)

    def _written(self, specification: str, rules: tuple[str, ...]) -> str:
        sets = {"Replicas": ("r", self.replicas), "Members": ("m", self.members), "Partitions": ("p", self.partitions)}
        values = {name: [f"{prefix}{i}" for i in range(1, count + 1)] for name, (prefix, count) in sets.items()}
        lines = [f"SPECIFICATION {specification}", "CHECK_DEADLOCK FALSE", "CONSTANTS"]
        lines += [f"  {value} = {value}" for each in values.values() for value in each]
        lines += [f"  {name} = {{{', '.join(each)}}}" for name, each in values.items()]
        lines += [f"  {name} = {value}" for name, value in self._scalars().items()]
        lines += [f"{'INVARIANT' if rule in STATE_RULES + SITUATIONS else 'PROPERTY'} {rule}" for rule in rules]
        return "\n".join(lines) + "\n"

    def _scalars(self) -> dict[str, str]:
        return {
            "Cooperative": str(self.cooperative).upper(),
            "MaxGen": str(self.max_gen),
            "MaxCommits": str(self.max_commits),
            "Writes": str(self.writes).upper(),
            "MaxAhead": str(self.max_ahead),
            "MaxFaults": str(self.max_faults),
            "Bug": f'"{self.bug}"',
        }


def trace_configuration(*rules: str) -> str:
    """The configuration for a recorded run; all rules of the journal if none is named."""
    properties = "".join(f"PROPERTY {rule}\n" for rule in rules or JOURNAL_RULES)
    return f"SPECIFICATION Spec\nCHECK_DEADLOCK FALSE\n{properties}"


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug, and the rule that it breaks within these bounds."""

    rule: str
    bounds: Bounds

    @property
    def name(self) -> str:
        return f"{self.rule}-{self.bounds.bug}"


_QUIET = Bounds(max_faults=0)
_ONE_FAULT = Bounds()


def _planted(rule: str, bug: str, bounds: Bounds) -> Planted:
    return Planted(rule, replace(bounds, bug=bug))


PLANTED = (
    _planted("S1", "generation_not_bumped", _QUIET),
    _planted("S2", "leader_is_no_member", _QUIET),
    _planted("S3", "member_missing_in_view", _QUIET),
    _planted("S4", "join_answered_in_the_phase", _ONE_FAULT),
    _planted("S5", "assignment_altered", _QUIET),
    _planted("S5", "sync_ignores_generation", _ONE_FAULT),
    _planted("S6", "anybody_may_assign", _QUIET),
    _planted("S7a", "partition_assigned_twice", _QUIET),
    _planted("S7b", "fence_accepts_any_token", replace(_QUIET, writes=True)),
    _planted("S7c", "early_expiry", _QUIET),
    _planted("S7c", "generation_completes_without_waiting", _ONE_FAULT),
    _planted("S7c", "grant_before_revoke", replace(_QUIET, cooperative=True)),
    _planted("S9", "commit_ignores_generation", replace(_QUIET, max_commits=1)),
    _planted("S9", "newcomer_commits", replace(_ONE_FAULT, max_commits=1)),
    _planted("S9", "answer_before_durable", replace(_QUIET, max_commits=1)),
    _planted("S10", "offsets_not_loaded", Bounds(replicas=1, members=1, max_commits=3, max_faults=2)),
    _planted("S11", "no_epoch_check", _ONE_FAULT),
    _planted("S11", "reacquire_keeps_epoch", _ONE_FAULT),
    _planted("S12", "no_sequence_check", _ONE_FAULT),
    _planted("S13", "unknown_append_is_repeated", replace(_ONE_FAULT, max_commits=1)),
    _planted("S14", "assignment_not_persisted", _ONE_FAULT),
    _planted("S15", "lease_is_not_watched", _QUIET),
    _planted("D1", "answer_before_durable", _QUIET),
    _planted("D2", "unknown_is_rejected", replace(_ONE_FAULT, max_commits=1)),
    _planted("D3", "unknown_outcome_is_failure", _ONE_FAULT),
)
"""Each rule of steps and states has a bug that breaks it; one that `tests/simulation` plants, too, has its name."""

STUCK = Bounds(replicas=1, max_gen=9, max_ahead=0, bug="no_expiry")
"""A member that has stopped is never expired: a join phase never ends (L3), so the others never agree (L7)."""
