"""Groups with a history that a test makes by hand; the real core and the real strategies decide the rest."""

from __future__ import annotations

from typing import Any

from rota.demo.workload.fleet import SECOND_MS, GroupPlan
from rota.demo.workload.member import PlayedMember
from rota.demo.workload.shard import ShardWorld
from rota.pipeline.advisor import STRATEGIES
from rota.pipeline.facts.timeouts import Silences
from rota.pipeline.tables import GOLD, Line
from rota.pipeline.what_ifs import Known
from tests.pipeline.replaying import fold_lines, replays

Values = dict[str, Any]


class HandMade:
    """One group. Its members are numbered in the order of their ids, which is how strategies break ties."""

    def __init__(
        self, strategy: str, partitions: int, *, static: bool = False, session_timeout_ms: int = 10_000
    ) -> None:
        self._plan = GroupPlan("g", strategy, 0, partitions, static, session_timeout_ms, 0, 0, 0, 0, 0)
        self._world = _Punctual(0, [], seed=1, starts_at_ms=0)
        self._members: dict[int, PlayedMember] = {}
        self._lines: list[Line] = []

    def start(self, *numbers: int) -> HandMade:
        """These processes start, and the group has all the time that it needs."""
        for number in numbers:
            member = self._members.setdefault(number, PlayedMember(self._world, self._plan, number))
            member.start()
        return self.wait(5)

    def stop(self, number: int) -> HandMade:
        """In order: a dynamic member leaves, a static one only goes."""
        self._members[number].leave("shutting down")
        return self.wait(5)

    def crash(self, number: int) -> HandMade:
        self._members[number].crash()
        return self

    def pause(self, number: int, seconds: float) -> HandMade:
        """It does nothing for so long, and then goes on as if nothing had been."""
        self._members[number].paused_until_ms = self._world.scheduler.now_ms + int(seconds * SECOND_MS)
        return self

    def restart(self, *numbers: int) -> HandMade:
        """One after the other, each away for five seconds."""
        for number in numbers:
            self.stop(number).start(number)
        return self

    def wait(self, seconds: float) -> HandMade:
        self._lines += [Line(*row) for row in self._world.run(self._world.scheduler.now_ms + int(seconds * SECOND_MS))]
        return self

    @property
    def lines(self) -> list[Line]:
        """The group's lines so far."""
        return [line for line in self._lines if line.group_id]

    def advice(self, *strategies: str) -> dict[str, Values]:
        """By strategy the sums over all steps, as the report has them."""
        found: dict[str, Values] = {}
        for made in replays(self.lines, strategies or STRATEGIES):
            if made.table != "advisor":
                continue
            reported = as_dict(made.table, made.values)
            summed = found.setdefault(str(reported["assignor"]), dict.fromkeys(SUMMED, 0))
            summed.update({name: summed[name] + reported[name] for name in SUMMED})
        return found

    def what_ifs(self) -> dict[str, Values]:
        """By the change, with what it changes to."""
        known = {}
        for advice in self.rows("timeout_advice"):
            late = dict(zip(advice["late_ms"], advice["late"], strict=True))
            longest = advice["longest_kept_ms"], late, advice["longest_gap_ms"]
            silences = Silences(advice["gaps"], *longest, advice["member_ms"])
            known["default", "g"] = Known(advice["session_timeout_ms"], silences)
        rows = [as_dict(*made) for made in replays(self.lines, STRATEGIES, known=known) if made.table == "what_ifs"]
        return {f"{row['change']} {row['value']}".rstrip(): row for row in rows}

    def rows(self, table: str) -> list[Values]:
        """The rows of a table, closed ones and then open ones."""
        return [
            as_dict(row.table, row.values)
            for _, fold, closed in fold_lines(self.lines)
            for row in (*closed, *fold.open_rows())
            if row.table == table
        ]


class _Punctual(ShardWorld):
    """No machine is busy: a member that is late was paused by its test."""

    def _roughly(self, wait_ms: int) -> int:
        return wait_ms


SUMMED = ("moves", "least_moves", "rounds", "paused_units")


def as_dict(table: str, values: tuple[object, ...]) -> Values:
    return dict(zip([column.name for column in GOLD[table].columns], values, strict=True))
