"""Which outcomes the core had for which event in which state of a group: an outcome without a seed is untested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import product

from rota.core.group.shard import Shard
from rota.core.group.state import GroupState, Result, TimerKind
from rota.protocol.messages import HeartbeatManyReply, LeaveReply, Reply

NO_GROUP = "none"
"""The shard has no such group."""
PARKED, ACTS, NOTHING = "parked", "acts", "nothing"
STATES = (NO_GROUP, *(state.value for state in GroupState if state is not GroupState.DEAD))
"""A deleted group is in no shard's memory: only its generation is."""

_REJECTED = "UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID ILLEGAL_GENERATION"
_TIMER = f"{ACTS} {NOTHING}"
OUTCOMES: Mapping[str, tuple[str, ...]] = {
    event: tuple(outcomes.split())
    for event, outcomes in {
        "JoinGroup": f"NONE {PARKED} MEMBER_ID_REQUIRED UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID INVALID_REQUEST "
        "INCONSISTENT_GROUP_PROTOCOL GROUP_MAX_SIZE_REACHED INVALID_GROUP_ID INVALID_SESSION_TIMEOUT THROTTLED",
        "SyncGroup": f"NONE {PARKED} {_REJECTED} REBALANCE_IN_PROGRESS ASSIGNMENT_FAILED "
        "INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID",
        "Heartbeat": f"NONE {PARKED} {_REJECTED} REBALANCE_IN_PROGRESS INVALID_GROUP_ID",
        "HeartbeatMany": f"NONE {_REJECTED} REBALANCE_IN_PROGRESS",
        "LeaveGroup": "NONE UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID INVALID_REQUEST INVALID_GROUP_ID GROUP_ID_NOT_FOUND",
        "CommitOffsets": f"NONE {_REJECTED} REBALANCE_IN_PROGRESS GROUP_ID_NOT_FOUND",
        "FetchOffsets": "NONE",
        "DeleteOffsets": "NONE NON_EMPTY_GROUP GROUP_ID_NOT_FOUND",
        "DescribeGroup": "NONE GROUP_ID_NOT_FOUND GROUP_DELETED",
        "VerifyFence": "NONE UNKNOWN_MEMBER_ID ILLEGAL_GENERATION GROUP_ID_NOT_FOUND",
        "GetLeader": "NONE GROUP_ID_NOT_FOUND",
        "DeleteGroup": "NONE NON_EMPTY_GROUP GROUP_ID_NOT_FOUND",
        "FreezeGroup": "NONE INVALID_REQUEST GROUP_ID_NOT_FOUND INVALID_GROUP_ID",
        "QuarantineGroup": "NONE INVALID_REQUEST GROUP_ID_NOT_FOUND INVALID_GROUP_ID",
        "DrainMember": "NONE UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID GROUP_ID_NOT_FOUND INVALID_GROUP_ID",
        "RebalanceGroup": "NONE INVALID_REQUEST GROUP_ID_NOT_FOUND INVALID_GROUP_ID",
        **{f"timer:{kind}": _TIMER for kind in TimerKind if kind is not TimerKind.ASSIGN},
        "wait_is_over": _TIMER,
        "hang_up": _TIMER,
        "take_in": _TIMER,
    }.items()
}
"""The outcomes that each event may have in some state. Any other outcome is reported as a violation."""

Reached = Counter[tuple[str, str, str]]
"""State, event, outcome."""


def state_of(shard: Shard, namespace: str, group_id: str) -> str:
    group = shard.groups.get((namespace, group_id))
    return group.state.value if group is not None else NO_GROUP


def outcome_of_request(call: int, decided: Result) -> list[str]:
    """The core's decision for a call: several outcomes where it brought several heartbeats."""
    for number, reply in decided.replies:
        if number == call:
            return outcomes_of_reply(reply)
    return [PARKED]


def outcome_of_step(decided: Result | None) -> str:
    """The outcome of a timer, or of any other input that is no request."""
    return ACTS if decided is not None and (decided.records or decided.replies) else NOTHING


def unknown(reached: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Outcomes that are not in the table."""
    return [each for each in reached if each[2] not in OUTCOMES.get(each[1], ())]


def unreached(reached: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """All outcomes of the table that were not reached."""
    seen = set(reached)
    return [
        (state, event, outcome)
        for event, outcomes in OUTCOMES.items()
        for state, outcome in product(STATES, outcomes)
        if (state, event, outcome) not in seen
    ]


class Arguments:
    """Why outcomes are not reached: a file with lines of `states | events | outcomes | why`, with `*` in them."""

    def __init__(self, text: str) -> None:
        rows = [line.split("|", 3) for line in text.splitlines() if line and not line.startswith("#")]
        self.lines = [tuple(part.split() for part in row[:3]) for row in rows]

    def faults(self, reached: Iterable[tuple[str, str, str]]) -> Iterator[str]:
        """Outcomes that the file lacks, and lines of it that are wrong."""
        seen, missing = set(reached), unreached(reached)
        for each in missing:
            if not any(_matches(line, each) for line in self.lines):
                yield f"not reached, and no reason is given: {' | '.join(each)}"
        for line in self.lines:
            said = " | ".join(" ".join(part) for part in line)
            if contradicted := sorted(each for each in seen if _matches(line, each)):
                yield f"said to be unreachable in '{said}', but reached: {contradicted}"
            if not any(_matches(line, each) for each in missing):
                yield f"says nothing: '{said}'"


def table(reached: Reached) -> Iterator[str]:
    """For people: how often each outcome was reached, by event and state."""
    for event, outcomes in OUTCOMES.items():
        yield event
        for state in STATES:
            counts = (f"{outcome} {reached[(state, event, outcome)] or '—'}" for outcome in outcomes)
            yield f"  {state:20} {'  '.join(counts)}"


def outcomes_of_reply(reply: Reply) -> list[str]:
    match reply:
        case HeartbeatManyReply(error=error, errors=errors):
            return [error.value, *(each.error.value for each in errors)]
        case LeaveReply(error=error, members=members):
            return [error.value, *(each.error.value for each in members)]
    return [reply.error.value]


def _matches(line: tuple[list[str], ...], each: tuple[str, str, str]) -> bool:
    return all(any(fnmatchcase(value, p) for p in patterns) for value, patterns in zip(each, line, strict=True))
