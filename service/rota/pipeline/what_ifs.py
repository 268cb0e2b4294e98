"""What a change of a group would have come to over its history: another strategy, static members, another timeout.

Each has a price in three parts: what moves, what stands still while members agree, and what waits for a member that is
silent or away. The last two are in units times milliseconds: one unit that stands still for a second is 1,000.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from rota.core.assignors import MemberSubscription, UnknownAssignor, strategy
from rota.core.assignors.forecast import Partitions
from rota.pipeline.facts.fact import Event, Row, row, us
from rota.pipeline.facts.timeouts import LEAST_MS, Silences, client_of, ended_by_silence, is_soon, recommend, round_up
from rota.pipeline.tables import WHAT_IFS
from rota.pipeline.worlds import Members, Outcome, Seats, Subscriptions, World

NO_CHANGE, STRATEGY, STATIC, TIMEOUT = "none", "strategy", "static membership", "session timeout"
LEFT, SILENT, OTHERWISE = "left", "silent", "otherwise"
_SERVER = "server:"


class Known(NamedTuple):
    """What the facts say of a group's sessions."""

    session_timeout_ms: int
    silences: Silences


class Cost(NamedTuple):
    """What a step came to, without its shares: a history may have many steps."""

    join_phases: int
    moves: int
    paused_units: int
    units: int
    cooperative: bool

    @classmethod
    def of(cls, outcome: Outcome) -> Cost:
        found = outcome.paused_units, outcome.units, outcome.cooperative
        return cls(outcome.rounds, outcome.change.moves, *found)


@dataclass(slots=True)
class Price:
    """What a history came to. The fields are columns of `what_ifs`."""

    rebalances: float = 0
    join_phases: float = 0
    moves: float = 0
    paused_unit_ms: float = 0
    waiting_unit_ms: float = 0
    false_expiries: float = 0

    def add(self, join_phases: int, moves: int, paused_units: int, round_ms: float) -> None:
        """One more step of rounds that take so long each."""
        self.rebalances += 1
        self.join_phases += join_phases
        self.moves += moves
        self.paused_unit_ms += paused_units * round_ms

    def add_outcome(self, outcome: Outcome, round_ms: float) -> None:
        """The same, of a step that came to this."""
        self.add(outcome.rounds, outcome.change.moves, outcome.paused_units, round_ms)


@dataclass(slots=True)
class Stay:
    """One time of a member in the group."""

    member_id: str
    client: str
    static: bool
    timeout_ms: int
    joined_ms: int
    ended_ms: int = 0
    end: str = ""
    held: int = 0
    """How many units it had when it went."""
    successor: Stay | None = None
    """The same client's next time in the group."""

    @property
    def seen_ms(self) -> int:
        """When the member was last known to live."""
        return self.ended_ms - self.timeout_ms if self.end == SILENT else self.ended_ms

    @property
    def was_late(self) -> bool:
        """Its session ended for nothing: the client came back soon after."""
        after, lasted = self.successor, [self.ended_ms, self.timeout_ms]
        return self.end == SILENT and after is not None and self._is_before(after) and is_soon(lasted, after.joined_ms)

    @property
    def away_ms(self) -> int:
        """From the last sign of life until the client was back."""
        assert self.successor is not None
        return max(0, self.successor.joined_ms - self.seen_ms)

    def _is_before(self, other: Stay) -> bool:
        return self.ended_ms <= other.joined_ms


@dataclass(slots=True)
class Step:
    """One step of the group, as it really was."""

    at_ms: int
    strategy: str
    partitions: Partitions
    members: Members
    joined: bool
    cost: Cost | None
    """None where the group was empty from there on."""
    agreed_ms: int = 0
    rounds: int = 1
    said: Subscriptions | None = None
    """What the members say of themselves, where that is not the same of all."""
    others: dict[str, Outcome] = field(default_factory=dict)
    """The result under other strategies, until that is added up."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many partitions each topic had."""
        return self.partitions.counts

    @property
    def round_ms(self) -> float:
        return self.agreed_ms / self.rounds


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a member that goes, in another history."""

    waits_ms: int
    """For so long its units wait for it."""
    stays_until_ms: int = 0
    """It is a member up to then; 0 if only as long as it really was."""
    returns: bool = False
    """Its client's next member is the same one."""


class History:
    """All that happened to one group, gathered line by line, and the prices of other histories."""

    def __init__(self, known: Known | None = None) -> None:
        self.steps: list[Step] = []
        self.stays: list[Stay] = []
        self._here: dict[str, Stay] = {}
        self._renamed: dict[str, str] = {}
        self._known = known
        self._began_ms: int | None = None
        self._real = Price()
        self._others: dict[str, Price] = {}
        self._waiting: Counter[str] = Counter()
        """By strategy the units of silent members, times their session timeouts."""

    # --- gathering ------------------------------------------------------------------------------

    def note(self, event: Event, held_in: Mapping[str, Callable[[str], int]], actual: str) -> None:
        """Take a line in. `held_in` says for each world how many units a member has."""
        payload = event.payload
        match event.kind:
            case "rebalance_started":
                self._began_ms = event.at_ms if self._began_ms is None else self._began_ms
            case "member_joined":
                self._join(payload["member"], event.at_ms)
            case "member_left" | "member_expired" | "member_removed":
                self._part(event, held_in, actual)
            case "member_fenced":
                old_id, new_id = payload["member_id"], payload["new_member_id"]
                self._renamed[new_id] = self._renamed.get(old_id, old_id)
                if old_id in self._here:
                    self._here[new_id] = self._here.pop(old_id)

    def begin(self, step: Step) -> None:
        self._add_up()
        self.steps.append(step)
        self._agreed(step)

    def go_on(self, at_ms: int, outcome: Outcome) -> None:
        """One more round of the step."""
        step = self.steps[-1]
        step.cost, step.rounds = Cost.of(outcome), step.rounds + 1
        self._agreed(step, at_ms)

    def _add_up(self) -> None:
        """Add the last step to the sums: it goes no further."""
        if not self.steps or (step := self.steps[-1]).cost is None:
            return
        round_ms, cost = step.round_ms, step.cost
        self._real.add(cost.join_phases, cost.moves, cost.paused_units, round_ms)
        for name, outcome in step.others.items():
            self._others.setdefault(name, Price()).add_outcome(outcome, round_ms)
        step.others = {}

    def _agreed(self, step: Step, at_ms: int | None = None) -> None:
        began_ms, self._began_ms = self._began_ms, None
        if began_ms is not None:
            step.agreed_ms += max(0, (step.at_ms if at_ms is None else at_ms) - began_ms)

    def _join(self, member: dict[str, Any], at_ms: int) -> None:
        static = member["group_instance_id"] is not None
        stay = Stay(member["member_id"], client_of(member), static, member["session_timeout_ms"], at_ms)
        self._here[stay.member_id] = stay
        self.stays.append(stay)

    def _part(self, event: Event, held_in: Mapping[str, Callable[[str], int]], actual: str) -> None:
        member_id = event.payload["member_id"]
        stay = self._here.pop(member_id, None)
        if stay is None:
            return
        silent = event.kind == "member_expired" and ended_by_silence(event)
        stay.end = SILENT if silent else LEFT if event.kind == "member_left" else OTHERWISE
        stay.ended_ms, stay.held = event.at_ms, held_in[actual](member_id)
        if silent:
            for world, held in held_in.items():
                self._waiting[world] += held(member_id) * stay.timeout_ms

    # --- prices -----------------------------------------------------------------------------------

    def rows(self, key: Mapping[str, str], actual: str) -> Iterator[Row]:
        """A row for each change that is worth a look, and one without any."""
        self._add_up()
        steps = [step for step in self.steps if step.cost is not None]
        if not steps:
            return
        _find_successors(self.stays)
        late = sum(stay.was_late for stay in self.stays)
        for change, value, price in self._priced(steps, late, actual):
            columns = {name: round(getattr(price, name)) for name in _WHOLE}
            yield row(
                WHAT_IFS,
                **key,
                at=us(steps[-1].at_ms),
                change=change,
                value=value,
                **columns,
                false_expiries=price.false_expiries,
            )

    def _priced(self, steps: list[Step], late: int, actual: str) -> Iterator[tuple[str, str, Price]]:
        real = replace(self._real, waiting_unit_ms=self._waiting[actual], false_expiries=late)
        yield NO_CHANGE, "", real
        for name, price in self._others.items():
            yield STRATEGY, name, replace(price, waiting_unit_ms=self._waiting[name], false_expiries=late)
        known = all(_is_known(step.strategy) for step in steps)
        if known and any(stay.end in (LEFT, SILENT) and not stay.static for stay in self.stays):
            static = self._replayed(_if_static)
            static.false_expiries = late
            yield STATIC, "", static
        for timeout_ms in self._timeouts_to_try():
            yield TIMEOUT, str(timeout_ms), self._with_timeout(timeout_ms, real, steps, known=known)

    def _timeouts_to_try(self) -> list[int]:
        """Half of today's and twice that; the recommended one stands for that of them on its side of today's."""
        if self._known is None:
            return []
        today_ms = self._known.session_timeout_ms
        shorter_ms, longer_ms = round_up(max(LEAST_MS, today_ms // 2)), round_up(2 * today_ms)
        recommended_ms = recommend(self._known.silences, today_ms).recommended_ms or today_ms
        if recommended_ms < today_ms:
            shorter_ms = recommended_ms
        elif recommended_ms > today_ms:
            longer_ms = recommended_ms
        return sorted({shorter_ms, longer_ms} - {today_ms})

    def _with_timeout(self, timeout_ms: int, real: Price, steps: list[Step], *, known: bool) -> Price:
        assert self._known is not None
        today_ms, silences = self._known
        spared = [s for s in self.stays if s.was_late and s.away_ms < timeout_ms and timeout_ms > s.timeout_ms]
        if spared and known:
            price = self._replayed(lambda stay: _with_timeout_of(timeout_ms, stay))
        else:
            # The same steps: only the units of silent members wait longer or shorter.
            waiting = sum(stay.held * timeout_ms for stay in self.stays if stay.end == SILENT)
            price = Price(real.rebalances, real.join_phases, real.moves, real.paused_unit_ms, waiting)
        price.false_expiries = real.false_expiries - len(spared)
        more = silences.longer_than(timeout_ms) - silences.longer_than(today_ms) if timeout_ms < today_ms else 0.0
        if more > 0:
            _add_false_expiries(price, more, timeout_ms, steps)
        return price

    def _replayed(self, fate_of: Callable[[Stay], Fate]) -> Price:
        """The price of the history in which members that go have these fates, under the group's own strategy."""
        return _Replay(self.steps, self.stays, self._renamed, fate_of).price()


class _Replay:
    """The steps of another history: those of the real one that still change anything, and late departures."""

    def __init__(
        self, steps: list[Step], stays: Iterable[Stay], renamed: Mapping[str, str], fate_of: Callable[[Stay], Fate]
    ) -> None:
        self._renamed = renamed
        self._same = dict(renamed)
        self._price = Price()
        self._world = World()
        self._present: frozenset[str] = frozenset()
        self._kept: dict[str, int] = {}
        """Members that have really gone, and until when they are members here."""
        self._members: Members = ()
        """Those of the real group."""
        self._last: Step | None = None
        """The last real step that had members."""
        self._said: dict[str, MemberSubscription] = {}
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        for stay in sorted((s for s in stays if s.end), key=attrgetter("joined_ms")):
            self._part(stay, fate_of(stay))
        for step in steps:
            self._at(step.at_ms, 2, self._real, step)

    def price(self) -> Price:
        for _, _, happen, args in sorted(self._events, key=itemgetter(0, 1)):
            happen(*args)
        return self._price

    def _at(self, at_ms: int, order: int, happen: Callable[..., None], *args: Any) -> None:
        self._events.append((at_ms, order, happen, args))

    def _part(self, stay: Stay, fate: Fate) -> None:
        member = self._same.get(stay.member_id, stay.member_id)
        if fate.returns and stay.successor is not None:
            self._same[stay.successor.member_id] = member
        self._at(stay.ended_ms, 0, self._wait, member, fate.waits_ms)
        if fate.stays_until_ms > stay.ended_ms:
            self._at(stay.ended_ms, 1, self._keep, member, fate.stays_until_ms)
            if not fate.returns:
                self._at(fate.stays_until_ms, 3, self._go, fate.stays_until_ms)

    def _wait(self, member: str, waits_ms: int) -> None:
        self._price.waiting_unit_ms += self._world.held_by(member) * waits_ms

    def _keep(self, member: str, until_ms: int) -> None:
        self._kept[member] = until_ms

    def _go(self, at_ms: int) -> None:
        """A member that no client continues is gone at last, unless a real step has seen to it."""
        self._step(at_ms, has_other_cause=False)

    def _real(self, step: Step) -> None:
        former, self._last = self._last, step if step.cost is not None else self._last
        self._said.update({self._same.get(member, member): each for member, each in (step.said or {}).items()})
        members, self._members = self._members, step.members
        grown = former is not None and self._last is not None and former.counts != self._last.counts
        self._step(step.at_ms, has_other_cause=grown or self._ids(members) == self._ids(step.members))

    def _ids(self, members: Members) -> set[str]:
        return {self._renamed.get(member, member) for member, _ in members}

    def _step(self, at_ms: int, *, has_other_cause: bool) -> None:
        self._kept = {member: until for member, until in self._kept.items() if until > at_ms}
        present = frozenset(self._same.get(member, member) for member, _ in self._members) | self._kept.keys()
        if self._last is None or (present == self._present and not has_other_cause):
            return
        self._present = present
        if not present:
            self._world.clear()
            return
        name = self._last.strategy.removeprefix(_SERVER)
        seats = Seats.of([(member, None) for member in present], self._said or None)
        outcome = self._world.step(name, self._last.partitions, seats, joined=self._last.joined)
        self._price.add_outcome(outcome, self._last.round_ms)


def _if_static(stay: Stay) -> Fate:
    """A static member does not leave: it is back within its session timeout, or expires."""
    back = stay.successor
    if stay.end == OTHERWISE or stay.static:
        return Fate(stay.timeout_ms if stay.end == SILENT else 0)
    if back is not None and stay.away_ms < stay.timeout_ms:
        return Fate(stay.away_ms, back.joined_ms, returns=True)
    if stay.end == LEFT:
        return Fate(stay.timeout_ms, stay.ended_ms + stay.timeout_ms)
    return Fate(stay.timeout_ms)


def _with_timeout_of(timeout_ms: int, stay: Stay) -> Fate:
    """A member that was late keeps its session, if the timeout is above its silence."""
    if stay.end != SILENT:
        return Fate(0)
    if stay.was_late and stay.away_ms < timeout_ms:
        assert stay.successor is not None
        return Fate(stay.away_ms, stay.successor.joined_ms, returns=True)
    return Fate(timeout_ms)


def _add_false_expiries(price: Price, more: float, timeout_ms: int, steps: list[Step]) -> None:
    """So many members go for nothing and come back: two steps each, for an even share of the last step's units."""
    last = steps[-1].cost
    assert last is not None
    share = last.units / max(1, len(steps[-1].members))
    round_ms = sum(step.round_ms for step in steps) / len(steps)
    price.false_expiries += more
    price.rebalances += 2 * more
    price.join_phases += (3 if last.cooperative else 2) * more
    price.moves += 2 * share * more
    price.paused_unit_ms += 2 * (share if last.cooperative else last.units) * round_ms * more
    price.waiting_unit_ms += share * timeout_ms * more


def _find_successors(stays: list[Stay]) -> None:
    """Pair each stay that ended with the client's next one that no other has: it began after the last sign of life."""
    by_client: dict[str, list[Stay]] = {}
    for stay in stays:
        by_client.setdefault(stay.client, []).append(stay)
    for of_client in by_client.values():
        of_client.sort(key=attrgetter("joined_ms"))
        taken: set[int] = set()
        for stay in sorted((s for s in of_client if s.end in (LEFT, SILENT)), key=attrgetter("ended_ms")):
            earliest_ms = max(stay.seen_ms, stay.joined_ms + 1)
            for place in range(bisect_left(of_client, earliest_ms, key=attrgetter("joined_ms")), len(of_client)):
                if place not in taken:
                    taken.add(place)
                    stay.successor = of_client[place]
                    break


def _is_known(name: str) -> bool:
    try:
        return bool(strategy(name.removeprefix(_SERVER)))
    except UnknownAssignor:
        return False


_WHOLE = ("rebalances", "join_phases", "moves", "paused_unit_ms", "waiting_unit_ms")
