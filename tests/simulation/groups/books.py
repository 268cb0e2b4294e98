"""The checker's own books: what each program was notified of, what its bodies do, and the rules that this may break."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.simulation.groups.trace import VIOLATION, Trace

Place: TypeAlias = Hashable
"""One unit of a share: a partition, a connector's task, a number, or the leadership."""
MOST_VIOLATIONS = 10


@dataclass(slots=True, eq=False)
class Ledger:
    """The books of one life of a program."""

    name: str
    is_static: bool
    is_valid: Callable[[], bool]
    """Whether the SDK says at this moment that what the program holds is its own."""
    is_active: Callable[[Place], bool]
    """Whether its copy of a place is the active one."""
    shares_work: bool = True
    """Held places count for `one holder`; an inner election's do not."""
    held: dict[Place, float] = field(default_factory=dict)
    """By the callbacks."""
    bodies: dict[Place, int] = field(default_factory=dict)
    """Bodies that run now."""
    excused: set[Place] = field(default_factory=set)
    """Places with an `on_revoked` that raised: `on_lost` may come for them, or nothing."""
    lost_meanwhile: set[Place] = field(default_factory=set)
    """Places that were lost while their `on_revoked` ran in a thread, which returned: `on_lost` may come for them."""
    finished: set[Place] = field(default_factory=set)
    """Places with a body that has returned by itself."""
    is_dead: bool = False
    """The process was killed: what its callbacks do from here on counts for nothing."""
    is_over: bool = False
    is_closing: bool = False
    """Its program is leaving the block in order."""
    steps_aside: bool = False
    """Its program has asked to leave the group for a while: a static member may send LeaveGroup then."""
    idle_s: float = 0.0
    """For how long it has led without a body."""
    soon_asked: int = 0
    soon_answered: int = 0

    @property
    def works_on(self) -> list[Place]:
        return list({**self.held, **self.bodies})


class Books:
    """Takes notes, and checks what must hold at each moment."""

    def __init__(self, trace: Trace, clock: Callable[[], float]) -> None:
        self._trace = trace
        self._clock = clock
        self.most_holders = 1
        self.ledgers: list[Ledger] = []
        self.violations: list[str] = []
        self.handed_over = 0
        self.highest_tokens: dict[Place, tuple[int, Ledger]] = {}
        """What a fenced resource has seen of each place, and of which program."""

    def open(self, ledger: Ledger) -> Ledger:
        self.ledgers.append(ledger)
        return ledger

    def violation(self, rule: str, text: str) -> None:
        self._trace.note("checker", f"{VIOLATION} {rule}", text)
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(f"{rule}: {text}")

    # --- callbacks ----------------------------------------------------------------------------

    def assigned(self, ledger: Ledger, added: Collection[Place], held: Collection[Place]) -> None:
        """`on_assigned` is called."""
        self._trace.note(ledger.name, "on_assigned", (tuple(added), tuple(held)))
        if ledger.is_dead:
            return
        for place in added:
            if place in ledger.held:
                self.violation("assigned-twice", f"{ledger.name} was given {place} that it holds")
            ledger.held[place] = self._clock()
            ledger.excused.discard(place)
            ledger.lost_meanwhile.discard(place)
        self.handed_over += len(added)
        if set(ledger.held) != set(held):
            self.violation("callbacks-differ", f"{ledger.name} holds {list(ledger.held)}, called with {list(held)}")
        self.check_holders(held)

    def ended(self, ledger: Ledger, how: str, removed: Collection[Place]) -> None:
        """`on_revoked` has returned, or `on_lost` is called."""
        self._trace.note(ledger.name, how, tuple(removed))
        if ledger.is_dead:
            return
        for place in removed:
            if ledger.held.pop(place, None) is None and not (how == "on_lost" and place in ledger.lost_meanwhile):
                self.violation("ended-twice", f"{ledger.name}: {how} of {place}, which it does not hold")

    # --- bodies -------------------------------------------------------------------------------

    def begins(self, ledger: Ledger, place: Place) -> None:
        self._trace.note(ledger.name, "body begins", place)
        if ledger.is_dead:
            return
        ledger.bodies[place] = ledger.bodies.get(place, 0) + 1
        ledger.finished.discard(place)
        self.handed_over += 1
        if ledger.bodies[place] > 1:
            self.violation("body-twice", f"{ledger.name} runs two bodies for {place}")
        self.check_holders([place])

    def ends(self, ledger: Ledger, place: Place, how: str) -> None:
        """A body is over: it returned, was cancelled, or raised."""
        self._trace.note(ledger.name, f"body {how}", place)
        ledger.bodies[place] -= 1
        if not ledger.bodies[place]:
            del ledger.bodies[place]
        if how == "returned":
            ledger.finished.add(place)

    def granted(self, ledger: Ledger, place: Place, token: int, most: int) -> None:
        """A program was granted one of `most` places, with a token that no other program had for it, nor a higher one.

        A program that was cut off for less than its session has the same token again: it is the same member.
        """
        self._trace.note(ledger.name, "granted", (place, token))
        if ledger.is_dead:
            return
        highest, holder = self.highest_tokens.get(place, (-1, ledger))
        if token < highest or (token == highest and holder is not ledger):
            text = f"{ledger.name} is granted {place} with token {token}, {holder.name} had {highest}"
            self.violation("token-repeated", text)
        self.highest_tokens[place] = (token, ledger)
        others = [each.name for each in self.ledgers if each.bodies and not each.is_dead and each.is_valid()]
        if len(others) >= most:
            self.violation("too-many-holders", f"{ledger.name} is granted {place} beside {others}")

    def writes(self, ledger: Ledger, place: Place, token: int) -> None:
        """A program writes to a fenced system, while the SDK says that it holds the place."""
        highest, _ = self.highest_tokens.get(place, (-1, ledger))
        if not ledger.is_dead and ledger.is_valid() and token < highest:
            self.violation("fenced", f"{ledger.name} holds {place} with token {token}, and {highest} was seen")

    # --- rules of each moment -----------------------------------------------------------------

    def check_holders(self, places: Collection[Place]) -> None:
        """No place is worked on by more members at once than its strategy allows, by their own clocks."""
        working = [ledger for ledger in self.ledgers if ledger.shares_work and not ledger.is_dead and ledger.is_valid()]
        for place in places:
            holding = [ledger for ledger in working if place in ledger.held or place in ledger.bodies]
            names = [ledger.name for ledger in holding]
            if len(names) > self.most_holders:
                self.violation("two-holders", f"{place} is held by {names} at once")
            active = [ledger.name for ledger in holding if ledger.is_active(place)]
            if len(active) > 1:
                self.violation("two-active", f"{active} have the active copy of {place} at once")

    def check_all_holders(self) -> None:
        self.check_holders(list({place: None for ledger in self.ledgers for place in ledger.works_on}))

    # --- the end of a life --------------------------------------------------------------------

    def close(self, ledger: Ledger) -> None:
        """The program's block was left: its share has ended, and each commit in the background was reported."""
        ledger.is_over = True
        if ledger.is_dead:
            return
        if missing := [place for place in ledger.held if place not in ledger.excused]:
            self.violation("not-ended", f"{ledger.name} left its block without a call for the end of {missing}")
        if ledger.bodies:
            self.violation("not-ended", f"{ledger.name} left its block while bodies run: {ledger.bodies}")
        if ledger.soon_answered < ledger.soon_asked:
            count = ledger.soon_asked - ledger.soon_answered
            self.violation("commit-not-reported", f"{ledger.name} got no outcome of {count} commits")
