"""One process in a world: from its start to its end in order, by an error, or without a word."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from rota.client import Client
from rota.client.errors import CoordinatorError, CoordinatorUnreachable, FencedInstanceId
from rota.client.transports.http import HttpTransport
from rota.client.transports.port import Transport
from rota.protocol.errors import ErrorCode
from tests.simulation.groups.books import Ledger, Place
from tests.simulation.groups.coordinator import NAMESPACE
from tests.simulation.groups.http_road import ADDRESS, HttpRoad
from tests.simulation.groups.link import CALM, Link
from tests.simulation.groups.wire_rules import WireRules

if TYPE_CHECKING:
    from tests.simulation.groups.world import World

LONG_TEXT = "x" * 10_000
MOST_CLOSE_S = 9.0
"""How long leaving a block may take: one deadline, for all states of the coordinator and of the work."""


class PlannedError(Exception):
    """What the user's code raises in a world."""


class Life(ABC):
    """A program that uses one object of the SDK. Subclasses write the program."""

    group_id = "g"

    def __init__(self, world: World, name: str, instance_id: str | None, stage: int) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.stage = stage
        self.rng: Random = world.rng
        self.stopping = asyncio.Event()
        self.error: BaseException | None = None
        self.body_error: BaseException | None = None
        self.entered = False
        """Whether the program is in its block, or was."""
        self.raised = False
        """Whether the user's code has raised: the block may end with that."""
        self.began_at = world.loop.time()
        self.asked_to_end_at: float | None = None
        self.errands: dict[asyncio.Task[None], None] = {}
        self.ledger = world.books.open(Ledger(name, instance_id is not None, self.is_valid, self.is_active))
        self.link = self._link()
        self.client = Client(self._transport(self.link), NAMESPACE, client_id=name)
        self.task: asyncio.Task[None] = world.loop.create_task(self._live(), name=name)

    # --- what the program says of itself --------------------------------------------------------

    @property
    @abstractmethod
    def member(self) -> Any:
        """The `Member` underneath."""

    @abstractmethod
    async def use(self) -> None:
        """The program: enter the block, work, leave it."""

    def is_active(self, place: Place) -> bool:
        """Whether its copy of a place is the active one; its only one is."""
        return True

    def is_valid(self) -> bool:
        """Whether the SDK says that what this program holds is its own now."""
        valid_until = self.member.valid_until
        return valid_until is not None and self.world.loop.time() < valid_until

    @property
    def is_live(self) -> bool:
        """Whether the process runs and was not asked to end."""
        return not self.task.done() and not self.ledger.is_dead and self.asked_to_end_at is None

    def looks_at_stopping(self, place: Place) -> bool:
        """Whether the body that works on this looks at `stopping`. Drawn apart from the world's other choices."""
        return Random(f"looks {self.world.seed} {self.name} {place}").random() < 0.5

    # --- ending -------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the program to leave its block."""
        if self.asked_to_end_at is None:
            self.asked_to_end_at = self.world.loop.time()
            self.world.trace.note(self.name, "is asked to end")
            self.stopping.set()

    def kill(self) -> None:
        """End the process without a word: nothing that it still does can be seen."""
        self.world.trace.note(self.name, "is killed")
        self.ledger.is_dead = True
        self.link.cut(silent=self.rng.random() < 0.5)
        self.task.cancel()

    def reconnect(self) -> None:
        """End a cut of its network. A process that is dead by then sends nothing any more."""
        if not self.ledger.is_dead:
            self.link.repair()

    async def _live(self) -> None:
        self.world.trace.note(self.name, "starts", (type(self).__name__, self.instance_id, self.stage))
        try:
            await self.use()
        except asyncio.CancelledError as error:
            if not self.ledger.is_dead:
                self.error = error
        except Exception as error:
            self.error = error
        for errand in list(self.errands):
            errand.cancel()
        self._over()

    def _over(self) -> None:
        self.world.trace.note(self.name, "is over", repr(self.error)[:300])
        self.world.books.close(self.ledger)
        if self.ledger.is_dead:
            return
        # The deadline of a stop may pass while the process stands still. Then it is over at once, without a LeaveGroup.
        if self.world.loop.time() > self.world.stalled_until:
            self.wire.check_left(self.group_id)
        for problem in self.problems_at_end() if self.error is None else ():
            self.world.books.violation("stored-not-committed", f"{self.name} {problem}")
        if self.error is not None and not self._may_end_with(self.error):
            self.world.books.violation("ended", f"the block of {self.name} ended with {self.error!r:.300}")
        if self.body_error is not None and not _is_in_chain(self.body_error, self.error):
            text = f"{self.name} raised {self.body_error!r}, but its block ended with {self.error!r:.300}"
            self.world.books.violation("error-hidden", text)

    def _may_end_with(self, error: BaseException) -> bool:
        if isinstance(error, PlannedError):
            return self.raised
        if isinstance(error, CoordinatorError) and error.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return len(self.world.plan.stages) > 1
        if isinstance(error, CoordinatorUnreachable):
            return not self.entered  # A pattern could not be looked up at the start.
        return isinstance(error, FencedInstanceId) and self.world.has_successor(self)

    def problems_at_end(self) -> list[str]:
        """The error in the progress of a program that has left its block in order."""
        return []

    # --- helpers ------------------------------------------------------------------------------

    def _link(self) -> Link:
        world = self.world
        link = Link(world.coordinator, world.loop, world.rng, world.trace, self.name)
        self.wire = WireRules(world.books, self.ledger, world.coordinator, world.loop)
        link.observer = self.wire
        link.weather = CALM if world.is_calm else world.plan.weather
        return link

    def _transport(self, link: Link) -> Transport:
        if self.rng.random() >= self.world.plan.http:
            return link
        return HttpTransport([ADDRESS], inner=HttpRoad(link, self.rng, self.world.trace))

    def may(self, feature: str, share: float) -> bool:
        """Whether the program does something odd now."""
        world = self.world
        return not world.is_calm and not self.ledger.is_dead and world.plan.has(feature) and self.rng.random() < share

    async def perhaps_in_a_task_group(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do a step of the work; sometimes as a task beside others, from which errors come out in a group."""
        if not self.may("task groups", 0.5):
            await step()
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(step())
            tasks.create_task(asyncio.sleep(0.1))

    def text(self, short: str) -> str:
        return LONG_TEXT if self.may("texts", 0.5) else short

    def planned_error(self) -> PlannedError:
        self.raised = True
        self.ledger.is_closing = False  # From here on it is not left in order.
        return PlannedError(self.text("raised as planned"))

    def errand(self, name: str, program: Callable[[], Any]) -> None:
        """Do something beside the block. Errors of the SDK in it are noted only."""

        async def run() -> None:
            try:
                await program()
            except Exception as error:
                self.world.trace.note(self.name, f"errand {name} failed", repr(error)[:200])

        task = self.world.loop.create_task(run(), name=f"{self.name} {name}")
        self.errands[task] = None
        task.add_done_callback(lambda done: self.errands.pop(done, None))

    async def until_stopped(self) -> None:
        """The body of the block where it does nothing of its own; sometimes it raises."""
        self.entered = True
        if self.world.plan.has("raise") and self.rng.random() < 0.3:
            try:
                async with asyncio.timeout(1 + 4 * self.rng.random()):
                    await self.stopping.wait()
                return
            except TimeoutError:
                if not self.world.is_calm:
                    self.asked_to_end_at = self.world.loop.time()
                    self.body_error = self.planned_error()
                    raise self.body_error from None
        await self.stopping.wait()
        self.ledger.is_closing = True


def _is_in_chain(wanted: BaseException, error: BaseException | None) -> bool:
    """Whether a traceback of `error` shows `wanted`."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is wanted:
            return True
        if each is not None and each not in seen:
            seen.append(each)
            context = None if each.__suppress_context__ else each.__context__
            waiting += [each.__cause__, context, *getattr(each, "exceptions", ())]
    return False
