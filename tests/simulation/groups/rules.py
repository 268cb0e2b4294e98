"""The rules of what programs are notified of, and of what their bodies do."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tests.simulation.groups.life import Life
    from tests.simulation.groups.world import ProgramWorld

Place: TypeAlias = Hashable
"""One unit of a share: a partition, a connector's task, a number, or the leadership."""


class ProgramRules:
    """Takes notes, and checks what must hold at each moment. Each program has its own notes: see `Life`."""

    def __init__(self, world: ProgramWorld) -> None:
        self._world = world
        self.most_holders = 1
        self.lives: list[Life] = []
        self.highest_tokens: dict[Place, tuple[int, Life]] = {}
        """What a fenced resource has seen of each place, and of which program."""

    def violation(self, rule: str, text: str) -> None:
        self._world.violation(f"{rule}: {text}")

    # --- callbacks ----------------------------------------------------------------------------

    def assigned(self, life: Life, added: Collection[Place], held: Collection[Place]) -> None:
        """`on_assigned` is called."""
        self._world.note(life.name, "on_assigned", (tuple(added), tuple(held)))
        for place in added:
            if place in life.held:
                self.violation("assigned-twice", f"{life.name} was given {place} that it holds")
            life.held[place] = None
            life.excused.discard(place)
            life.lost_meanwhile.discard(place)
        if set(life.held) != set(held):
            self.violation("callbacks-differ", f"{life.name} holds {list(life.held)}, called with {list(held)}")
        self.check_holders(held)

    def ended(self, life: Life, how: str, removed: Collection[Place]) -> None:
        """`on_revoked` has returned, or `on_lost` is called."""
        self._world.note(life.name, how, tuple(removed))
        for place in removed:
            was_lost = how == "on_lost" and place in life.lost_meanwhile
            if life.held.pop(place, self) is self and not was_lost:
                self.violation("ended-twice", f"{life.name}: {how} of {place}, which it does not hold")

    # --- bodies -------------------------------------------------------------------------------

    def begins(self, life: Life, place: Place) -> None:
        self._world.note(life.name, "body begins", place)
        life.bodies[place] = life.bodies.get(place, 0) + 1
        life.finished.discard(place)
        if life.bodies[place] > 1:
            self.violation("body-twice", f"{life.name} runs two bodies for {place}")
        self.check_holders([place])

    def ends(self, life: Life, place: Place, how: str) -> None:
        """A body is over: it returned, was cancelled, or raised."""
        self._world.note(life.name, f"body {how}", place)
        life.bodies[place] -= 1
        if not life.bodies[place]:
            del life.bodies[place]
        if how == "returned":
            life.finished.add(place)

    def granted(self, life: Life, place: Place, token: int, most: int) -> None:
        """A program was granted one of `most` places, with a token that no other program had for it, nor a higher one.

        A program that was cut off for less than its session has the same token again: it is the same member.
        """
        self._world.note(life.name, "granted", (place, token))
        highest, holder = self.highest_tokens.get(place, (-1, life))
        if token < highest or (token == highest and holder is not life):
            text = f"{life.name} is granted {place} with token {token}, {holder.name} had {highest}"
            self.violation("token-repeated", text)
        self.highest_tokens[place] = (token, life)
        others = [each.name for each in self.lives if each.bodies and each.is_working()]
        if len(others) >= most:
            self.violation("too-many-holders", f"{life.name} is granted {place} beside {others}")

    def writes(self, life: Life, place: Place, token: int) -> None:
        """A program writes to a fenced system, while the SDK says that it holds the place."""
        highest, _ = self.highest_tokens.get(place, (-1, life))
        if life.is_valid() and token < highest:
            self.violation("fenced", f"{life.name} holds {place} with token {token}, and {highest} was seen")

    # --- rules of each moment -----------------------------------------------------------------

    def check_holders(self, places: Collection[Place]) -> None:
        """No place is worked on by more members at once than its strategy allows, by their own clocks."""
        working = [life for life in self.lives if life.is_working()]
        for place in places:
            holding = [life for life in working if place in life.held or place in life.bodies]
            names = [life.name for life in holding]
            if len(names) > self.most_holders:
                self.violation("two-holders", f"{place} is held by {names} at once")
            active = [life.name for life in holding if life.is_active(place)]
            if len(active) > 1:
                self.violation("two-active", f"{active} have the active copy of {place} at once")

    def check_all_holders(self) -> None:
        self.check_holders(list({place: None for life in self.lives for place in {**life.held, **life.bodies}}))

    # --- the end of a life --------------------------------------------------------------------

    def close(self, life: Life) -> None:
        """The program's block was left: its share has ended, and each commit in the background was reported."""
        if missing := [place for place in life.held if place not in life.excused]:
            self.violation("not-ended", f"{life.name} left its block without a call for the end of {missing}")
        if life.bodies:
            self.violation("not-ended", f"{life.name} left its block while bodies run: {life.bodies}")
        if life.soon_answered < life.soon_asked:
            count = life.soon_asked - life.soon_answered
            self.violation("commit-not-reported", f"{life.name} got no outcome of {count} commits")
