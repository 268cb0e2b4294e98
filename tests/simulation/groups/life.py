"""One process in a world: from its start to its end in order, by an error, or without a word."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from rota.client import Client as SDKClient
from rota.client.errors import CoordinatorError, CoordinatorUnreachable, FencedInstanceId
from rota.client.transports.http import HttpTransport
from rota.protocol.errors import ErrorCode
from tests.simulation.groups.http_road import ADDRESS, HttpRoad
from tests.simulation.groups.rules import Place
from tests.simulation.groups.transport import SimulatedTransport
from tests.simulation.loop import ProcessLoop
from tests.simulation.nemesis import FOR_EVER_MS
from tests.simulation.network import Client

if TYPE_CHECKING:
    from tests.simulation.groups.world import ProgramWorld

LONG_TEXT = "x" * 10_000
MOST_CLOSE_S = 9.0
"""How long leaving a block may take: one deadline, for all states of the coordinator and of the work."""


class PlannedError(Exception):
    """What the user's code raises in a world."""


class Life(Client):
    """A program that uses one object of the SDK, on an event loop of its own. Subclasses write the program."""

    world: ProgramWorld

    def __init__(self, world: ProgramWorld, name: str, instance_id: str | None, stage: int) -> None:
        super().__init__(name)
        self.world = world
        self.tried = world.draws.randrange(len(world.replica_ids))
        self.group_id = world.groups[0][1]
        self.instance_id = instance_id
        self.stage = stage
        self.rng: Random = world.draws
        self.stopping = asyncio.Event()
        self.error: BaseException | None = None
        self.body_error: BaseException | None = None
        self.entered = False
        """Whether the program is in its block, or was."""
        self.raised = False
        """Whether the user's code has raised: the block may end with that."""
        self.asked_to_end_at: float | None = None
        self.errands: dict[asyncio.Task[None], None] = {}
        self.is_static = instance_id is not None
        self.held: dict[Place, None] = {}
        """By the callbacks."""
        self.bodies: dict[Place, int] = {}
        """Bodies that run now."""
        self.excused: set[Place] = set()
        """Places with an `on_revoked` that raised: `on_lost` may come for them, or nothing."""
        self.lost_meanwhile: set[Place] = set()
        """Places that were lost while their `on_revoked` ran in a thread: `on_lost` may come for them."""
        self.finished: set[Place] = set()
        """Places with a body that has returned by itself."""
        self.is_closing = False
        """Its program is leaving the block in order."""
        self.steps_aside = False
        """Its program has asked to leave the group for a while: a static member may send LeaveGroup then."""
        self.idle_s = 0.0
        """For how long it has led without a body."""
        self.soon_asked = self.soon_answered = 0
        world.rules.lives.append(self)
        self.transport = SimulatedTransport(self)
        self.wire = self.transport.wire
        clock_ms = world.draws.randint(10_000, 1_000_000)
        self.loop = ProcessLoop(world.scheduler, self, clock_ms, lambda _error: None, is_interrupted=False)
        self.task: asyncio.Task[None] = self.loop.create_task(self._live())

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
        return valid_until is not None and self.loop.time() < valid_until

    def is_working(self) -> bool:
        """Whether the process runs, and the SDK says that what it holds is its own."""
        return not self.dead and self.is_valid()

    @property
    def is_live(self) -> bool:
        """Whether the process runs and was not asked to end."""
        return not self.task.done() and not self.dead and self.asked_to_end_at is None

    def looks_at_stopping(self, place: Place) -> bool:
        """Whether the body that works on this looks at `stopping`. Drawn apart from the world's other choices."""
        return Random(f"looks {self.world.seed} {self.name} {place}").random() < 0.5

    # --- ending -------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the program to leave its block."""
        if self.asked_to_end_at is None:
            self.asked_to_end_at = self.world.now_s
            self.world.note(self.name, "is asked to end")
            self.stopping.set()

    def kill(self) -> None:
        """End the process without a word. Its host may be gone: then no replica learns that its connections are."""
        self.world.note(self.name, "is killed")
        if self.rng.random() < 0.5:
            self.cut(FOR_EVER_MS)
        for exchange in list(self.exchanges.values()):
            exchange.cancel()
        self.dead = True

    def cut(self, for_ms: int) -> None:
        """For a while nothing that it sends arrives, nor what is sent to it."""
        network, until_ms = self.world.network, self.world.scheduler.now_ms + for_ms
        network.cut_from[self.name] = network.cut_to[self.name] = until_ms

    def do(self, act: Callable[[], object]) -> None:
        """Have the process call a function, once it has entered its block."""
        if self.entered and self.is_live:
            self.loop.call_soon(act)

    async def _live(self) -> None:
        self.world.note(self.name, "starts", (type(self).__name__, self.instance_id, self.stage))
        self.client = self.connect(self.transport)
        try:
            await self.use()
        except asyncio.CancelledError as error:
            self.error = error
        except Exception as error:
            self.error = error
        for errand in list(self.errands):
            errand.cancel()
        self._over()

    def _over(self) -> None:
        rules = self.world.rules
        self.world.note(self.name, "is over", repr(self.error)[:300])
        rules.close(self)
        # The deadline of a stop may pass while the process stands still. Then it is over at once, without a LeaveGroup.
        if self.world.scheduler.now_ms > self.paused_until_ms:
            self.wire.check_left()
        for problem in self.problems_at_end() if self.error is None else ():
            rules.violation("stored-not-committed", f"{self.name} {problem}")
        if self.error is not None and not self._may_end_with(self.error):
            rules.violation("ended", f"the block of {self.name} ended with {self.error!r:.300}")
        if self.body_error is not None and not _is_in_chain(self.body_error, self.error):
            text = f"{self.name} raised {self.body_error!r}, but its block ended with {self.error!r:.300}"
            rules.violation("error-hidden", text)

    def _may_end_with(self, error: BaseException) -> bool:
        if isinstance(error, PlannedError):
            return self.raised
        if isinstance(error, CoordinatorError) and error.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return len(self.world.plan.stages) > 1
        if isinstance(error, CoordinatorUnreachable):
            return not self.entered  # A pattern could not be looked up at the start.
        return isinstance(error, FencedInstanceId) and (self.world.has_twin(self) or self.wire.takeovers > 1)

    def problems_at_end(self) -> list[str]:
        """The error in the progress of a program that has left its block in order."""
        return []

    # --- helpers ------------------------------------------------------------------------------

    def connect(self, transport: SimulatedTransport) -> SDKClient:
        """A client of the SDK over this transport, which some programs use by HTTP."""
        by_http = self.rng.random() < self.world.plan.http
        used = HttpTransport([ADDRESS], inner=HttpRoad(transport, self)) if by_http else transport
        return SDKClient(used, self.world.groups[0][0], client_id=self.name)

    def may(self, feature: str, share: float) -> bool:
        """Whether the program does something odd now."""
        world = self.world
        return not world.is_calm and world.plan.has(feature) and self.rng.random() < share

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
        self.is_closing = False  # From here on it is not left in order.
        return PlannedError(self.text("raised as planned"))

    def errand(self, name: str, program: Callable[[], Any]) -> None:
        """Do something beside the block. Errors of the SDK in it are noted only."""

        async def run() -> None:
            try:
                await program()
            except Exception as error:
                self.world.note(self.name, f"errand {name} failed", repr(error)[:200])

        task = self.loop.create_task(run())
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
                    self.asked_to_end_at = self.world.now_s
                    self.body_error = self.planned_error()
                    raise self.body_error from None
        await self.stopping.wait()
        self.is_closing = True


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
