"""Which session timeout a group should have: from the silences of its members, and how they ended.

A timeout costs on both sides. Too short, and a member that is only late is expired, and the group rebalances for
nothing; too long, and the share of a dead one waits. A gap that a heartbeat ended is in the histograms. A longer one
ended the session, so no histogram has it: there the expiry counts, if the member's client came back soon after. Its
silence was longer than the timeout, and no longer than until it was back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rota.core.group.records import CLASSES, class_end_ms
from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import TIMEOUT_ADVICE

ALLOWED_PER_DAY = 0.01
"""False expiries a member and day: one member in a hundred, once a day."""
LEAST_MS = 1_000
DAY_MS = 86_400_000
SOON_MS = 10_000
"""A client that is back so soon after its expiry, or within its session timeout if that is longer, was only late."""
_FEWEST_GAPS = 500
"""With fewer than that, the histogram says little about rare gaps."""
_KEYS = tuple(map(str, range(CLASSES)))
"""JSON's keys are text, so classes are text from the beginning."""
_HEADROOM = 1.5
"""The longest gap of all has perhaps not been seen yet."""


class Silences(NamedTuple):
    """How long members were silent, all together."""

    gaps: Sequence[int]
    """How many gaps that a heartbeat ended fell into each class of `rota.core.group.records`."""
    longest_kept_ms: int
    """The longest of these."""
    late: Mapping[int, int]
    """How many silences ended a session though the client came back: by their length, rounded up to a timeout."""
    longest_gap_ms: int
    """The longest of either kind."""
    member_ms: int
    """For how long members were counted, added up."""

    def longer_than(self, timeout_ms: int) -> float:
        """How many sessions a timeout ends for nothing. Gaps of its own class are taken to be spread evenly in it."""
        if timeout_ms >= self.longest_gap_ms:
            return 0.0
        late = sum(count for silence_ms, count in self.late.items() if silence_ms > timeout_ms)
        return late + sum(
            count * self._part_above(number, timeout_ms) for number, count in enumerate(self.gaps) if count
        )

    def per_day(self, timeout_ms: int) -> float:
        """The same, a member and day."""
        return self.longer_than(timeout_ms) / self.days

    @property
    def days(self) -> float:
        return max(self.member_ms, 1) / DAY_MS

    def shortest(self, allowed: float) -> int:
        """The shortest timeout that ends no more than the allowed number of sessions for nothing."""
        ends = {min(class_end_ms(number), self.longest_kept_ms) for number, count in enumerate(self.gaps) if count}
        lengths = sorted(ends | self.late.keys())
        place = bisect_left(lengths, True, key=lambda ms: self.longer_than(ms) <= allowed)
        return lengths[place] + 1 if place < len(lengths) else LEAST_MS

    def _part_above(self, number: int, timeout_ms: int) -> float:
        """The part of a class that is longer than the timeout; the class ends with the longest gap."""
        begin_ms = class_end_ms(number - 1) + 1 if number else 0
        end_ms = min(class_end_ms(number), self.longest_kept_ms)
        return min(1.0, max(0, end_ms - timeout_ms) / max(1, end_ms - begin_ms + 1))


class Advice(NamedTuple):
    """What a group's timeout costs and which one would fit; None where too little is known. Columns of the table."""

    recommended_ms: int | None
    false_expiries_per_day: float
    recommended_false_per_day: float | None
    detection_saved_ms: int | None


def recommend(silences: Silences, session_timeout_ms: int, allowed_per_day: float = ALLOWED_PER_DAY) -> Advice:
    """The advice for a group. A client that came back after an expiry is evidence enough for a longer timeout."""
    today = silences.per_day(session_timeout_ms)
    if sum(silences.gaps) < _FEWEST_GAPS and not silences.late:
        return Advice(None, today, None, None)
    shortest_ms = silences.shortest(silences.days * allowed_per_day)
    wanted_ms = round_up(max(LEAST_MS, int(_HEADROOM * shortest_ms)))
    return Advice(wanted_ms, today, silences.per_day(wanted_ms), session_timeout_ms - wanted_ms)


class Timeouts(Fact):
    """One open day: the advice by all that is known so far. A count of another day closes it.

    Carries the members that expired a moment ago, by client: its return says that it was only late.
    """

    table = TIMEOUT_ADVICE

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or _nothing()

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        match event.kind:
            case "session_stats":
                yield from self._begin_day(event.at_ms, view)
                self._count(event)
            case "member_expired":
                self._expire(event, view)
            case "member_joined":
                silence_ms = self._returned(event)
                if silence_ms:
                    yield from self._begin_day(event.at_ms, view)
                    self._count_late(silence_ms)
            case "group_deleted":
                yield from self.open_rows(view)
                self.state = _nothing()

    def open_rows(self, view: GroupView) -> Iterator[Row]:
        silences, session_timeout_ms = self.silences, self.state["session_timeout_ms"]
        if not session_timeout_ms:
            return  # Without statistics it is not known for how long members were there.
        late = silences.late
        yield row(
            TIMEOUT_ADVICE,
            **view.key,
            at=us(self.state["at_ms"]),
            session_timeout_ms=session_timeout_ms,
            **recommend(silences, session_timeout_ms)._asdict(),
            gaps=silences.gaps,
            longest_kept_ms=silences.longest_kept_ms,
            late_ms=sorted(late),
            late=[late[ms] for ms in sorted(late)],
            longest_gap_ms=silences.longest_gap_ms,
            member_ms=silences.member_ms,
        )

    @property
    def silences(self) -> Silences:
        """All that were counted so far."""
        state = self.state
        gaps = [state["gaps"].get(name, 0) for name in _KEYS]
        late = {int(ms): count for ms, count in state["late"].items()}
        longest_ms = max(state["longest_kept_ms"], state["longest_late_ms"])
        return Silences(gaps, state["longest_kept_ms"], late, longest_ms, state["member_ms"])

    def _begin_day(self, at_ms: int, view: GroupView) -> Iterator[Row]:
        if self.state["at_ms"] and at_ms // DAY_MS > self.state["at_ms"] // DAY_MS:
            yield from self.open_rows(view)
        # Owners' clocks differ: a day that is over does not come again.
        self.state["at_ms"] = max(self.state["at_ms"], at_ms)

    def _count(self, event: Event) -> None:
        members, state = event.payload["members"], self.state
        gaps = state["gaps"]
        state["session_timeout_ms"] = max(session_ms for _, _, session_ms, *_ in members)
        for _, _, _, from_ms, longest_gap_ms, counted in members:
            state["member_ms"] += apart_ms(from_ms, event.at_ms)
            state["longest_kept_ms"] = max(state["longest_kept_ms"], longest_gap_ms)
            for number, count in counted:
                name = _KEYS[number]
                gaps[name] = gaps.get(name, 0) + count

    def _expire(self, event: Event, view: GroupView) -> None:
        image = view.members.get(event.payload["member_id"])
        # Where the journal's beginning was pruned, no line may have said what the member's timeout is.
        if image is not None and image["session_timeout_ms"] is not None and ended_by_silence(event):
            lost = self.state["lost"]
            lost.setdefault(client_of(image), []).append([event.at_ms, image["session_timeout_ms"]])
            for client in [each for each, ends in lost.items() if not any(is_soon(end, event.at_ms) for end in ends)]:
                del lost[client]

    def _returned(self, event: Event) -> int:
        """How long the client was silent that joins here, if its last member expired a moment ago; 0 otherwise."""
        lost = self.state["lost"].pop(client_of(event.payload["member"]), [])
        recent = [end for end in lost if is_soon(end, event.at_ms)]
        if not recent:
            return 0
        expired_ms, timeout_ms = recent.pop()
        if recent:
            self.state["lost"][client_of(event.payload["member"])] = recent
        return int(timeout_ms) + max(1, apart_ms(expired_ms, event.at_ms))

    def _count_late(self, silence_ms: int) -> None:
        state = self.state
        length = str(round_up(silence_ms))
        state["late"][length] = state["late"].get(length, 0) + 1
        state["longest_late_ms"] = max(state["longest_late_ms"], silence_ms)


def client_of(member: Mapping[str, Any]) -> str:
    """The identity of a client that comes back as another member: its instance id, or its name and its host."""
    return member["group_instance_id"] or f"{member['client_id']}\n{member['host']}"


def ended_by_silence(event: Event) -> bool:
    """Whether a member expired for its heartbeats, and not for a join or a sync that was late."""
    return "session timeout" in event.reason


def round_up(timeout_ms: int) -> int:
    """To a number that people write: half a second, a second from ten on, five from a minute on."""
    step = 500 if timeout_ms < 10_000 else 1_000 if timeout_ms < 60_000 else 5_000
    return -(-timeout_ms // step) * step


def is_soon(end: list[int], at_ms: int) -> bool:
    """Whether the time is soon after a session's end; `end` is that, and the session timeout."""
    expired_ms, timeout_ms = end
    return apart_ms(expired_ms, at_ms) <= max(SOON_MS, timeout_ms)


def _nothing() -> State:
    counted = dict.fromkeys(("longest_kept_ms", "longest_late_ms", "member_ms", "session_timeout_ms", "at_ms"), 0)
    return {"gaps": {}, "late": {}, "lost": {}, **counted}
