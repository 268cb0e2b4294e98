"""One member of one group: joins, leads, syncs, heartbeats, rejoins and leaves in the background.

Two tasks matter. The driver (`driver.py`) does what the state machine of `rota.membership` plans. The user's callbacks
(`holding.py`) run beside it, so that slow work never keeps a heartbeat waiting.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

from rota.client.callbacks import CallbackQueue, Listeners, call
from rota.client.calls import Caller
from rota.client.commits import Commits
from rota.client.driver import Driver
from rota.client.errors import MembershipLost, error_for
from rota.client.events import Assigned, Broadcast, MemberEvent, Reachable, Unreachable
from rota.client.holding import Holding
from rota.client.pulse import Pulse
from rota.client.roles import Role
from rota.client.transports.port import Transport
from rota.membership import Membership, MembershipSettings, State
from rota.membership import events as core
from rota.protocol.messages import (
    FenceReply,
    FetchedOffset,
    FetchOffsets,
    FetchReply,
    OffsetToCommit,
    TopicPartitions,
    VerifyFence,
)

Share = TypeVar("Share")

_CLOSE_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)


class Member(Generic[Share]):
    """A membership, for the time of an `async with` block.

    Leaving the block is two-phase: `on_revoked` finishes first, then the group is left. If the coordinator refuses
    this member for good (`FencedInstanceId`, `InconsistentGroupProtocol`, …) or a callback raises, the block is
    cancelled and that error comes out of it.

    `Share` is what an assignment means to the user: what its role reads in it.
    """

    def __init__(
        self,
        transport: Transport,
        settings: MembershipSettings,
        *,
        role: Role[Share],
        listeners: Listeners[Share] | None = None,
        leave_on_close: bool | None = None,
        jitter: Callable[[], float] = random.random,
        pulse: Pulse | None = None,
    ) -> None:
        """`leave_on_close` is whether closing tells the group; by default static members do not, they come back.

        With a `pulse`, this member is kept alive also while its event loop is blocked.
        """
        self._pulse = pulse
        self._caller = Caller(transport, jitter=jitter)
        self._machine = Membership(settings)
        self._role = role
        self._leaves = settings.group_instance_id is None if leave_on_close is None else leave_on_close
        self._jitter = jitter
        self._tasks = asyncio.TaskGroup()
        self._callbacks = CallbackQueue(self._tasks, self.fail)
        self._broadcast: Broadcast[Share] = Broadcast()
        self._driver = Driver(self._machine, transport, self._tasks, jitter=jitter, on_event=self._on_event)
        self._holding: Holding[Share] = Holding(
            self._machine, role, listeners or Listeners(), self._driver, self._callbacks, self._broadcast, self.fail
        )
        self._commits = Commits(self._machine, role, self._driver, self._holding, jitter)
        self._wake = self._driver.wake
        self._changed = self._driver.changed
        self._failure: Exception | None = None
        self._is_closing = False
        self._chores: list[asyncio.Task[None]] = []

    # --- where it stands ----------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        return self._machine.settings.namespace

    @property
    def group_id(self) -> str:
        return self._machine.settings.group_id

    @property
    def member_id(self) -> str:
        """Given by the coordinator; empty before the first answer."""
        return self._machine.member_id

    @property
    def generation_id(self) -> int:
        """The generation, which is the fencing token; -1 while in none."""
        return self._machine.generation_id

    @property
    def is_leader(self) -> bool:
        """Whether this member leads the generation that it is in."""
        return self._machine.is_leader

    @property
    def assignment(self) -> Share | None:
        """What this member may act on at this moment; None where it holds nothing.

        The clock is asked each time, so the answer is right even where the event loop was blocked past the deadline.
        """
        current = self._holding.current
        return current.share if current is not None and self._machine.holds(self._now_ms()) else None

    @property
    def valid_until(self) -> float | None:
        """When `assignment` ends unless it is renewed, in seconds of the event loop's clock; None if nothing is held.

        Always earlier than the moment from which the coordinator may give it to somebody else.
        """
        deadline_ms = self._machine.deadline_ms
        return None if deadline_ms is None else deadline_ms / 1000

    @property
    def revoke_by(self) -> float | None:
        """By when `on_revoked` must have returned, however well the coordinator can be reached meanwhile."""
        deadline_ms = self._machine.revoke_by_ms
        return None if deadline_ms is None else deadline_ms / 1000

    @property
    def unreachable_since(self) -> float | None:
        """Since when no answer came, once that cost a heartbeat; None while they come. Unreachable is not lost."""
        since_ms = self._machine.unreachable_since_ms
        return None if since_ms is None else since_ms / 1000

    def check_deadline(self) -> None:
        """Notice at once where the deadline has passed, though the event loop had no time to say so."""
        self._driver.look_at_time()
        self._wake.set()

    def _now_ms(self) -> int:
        return self._driver.now_ms()

    @property
    def _owned(self) -> Share | None:
        return self._holding.owned

    # --- waiting and watching -----------------------------------------------------------------

    async def wait_assigned(self) -> Assigned[Share]:
        """Return as soon as this member holds something (which may be nothing at all to do).

        Raises:
            MembershipLost: The member was closed meanwhile.
            CoordinatorError: The coordinator refuses this member for good.
        """
        while (current := self._holding.current) is None or self.assignment is None:
            if self._failure is not None:
                raise self._failure
            if self._machine.is_final:
                raise MembershipLost("the member is closed")
            await self._changed.wait()
        return current

    async def events(self) -> AsyncIterator[MemberEvent[Share]]:
        """What happens to this member, beginning with what it holds now. For watching: work is stopped by callbacks."""
        async for event in self._broadcast.listen(self._holding.current):
            yield event
        if self._failure is not None:
            raise self._failure

    # --- progress and fences ------------------------------------------------------------------

    async def commit(self, offsets: Iterable[OffsetToCommit]) -> None:
        """Record progress, fenced by the generation that is held now.

        Repeated while the coordinator cannot be reached, and where the group has moved on and left this member what
        it held: a resync, or a rebalance of a cooperative group.

        Raises:
            MembershipLost: Nothing is held, or the generation is over: nothing was committed.
            RebalanceInProgress: The group is between two generations: nothing was committed.
            CoordinatorUnreachable: It is not known whether it was committed, and nothing is held any more.
            OffsetMetadataTooLarge: The partitions in its detail were not committed, all others were.
        """
        await self._commits.commit(tuple(offsets))

    async def fetch_offsets(self, topics: Sequence[TopicPartitions] | None = None) -> tuple[FetchedOffset, ...]:
        """The group's committed offsets; an offset of -1 where nothing was committed."""
        settings = self._machine.settings
        wanted = None if topics is None else tuple(topics)
        reply = await self._caller.ask(FetchOffsets(settings.namespace, settings.group_id, wanted), FetchReply)
        return reply.offsets

    async def verify_fence(self) -> FenceReply:
        """Ask the coordinator whether this member's generation is still the current one.

        Raises:
            MembershipLost: It is not, or nothing is held.
        """
        settings = self._machine.settings
        if self.assignment is None:
            raise MembershipLost("this member holds nothing")
        request = VerifyFence(settings.namespace, settings.group_id, self.generation_id, self.member_id)
        return await self._caller.ask(request, FenceReply)

    async def signed_token(self) -> str:
        """A signed proof that this member is in the current generation, for services that check it offline.

        It is good for a minute or so (the server's `fence_token_ttl_ms`): ask again for the next write that needs one.
        See `rota.fencing.tokens.Fence` for the other side.

        Raises:
            MembershipLost: The generation is over, or nothing is held.
            InvalidRequest: The server has no keys to sign with.
        """
        settings = self._machine.settings
        if self.assignment is None:
            raise MembershipLost("this member holds nothing")
        request = VerifyFence(settings.namespace, settings.group_id, self.generation_id, self.member_id, sign=True)
        return (await self._caller.ask(request, FenceReply)).token

    def rejoin(self, reason: str) -> None:
        """Have the group rebalance (as the leader), or bring this member's part of it up to date."""
        self._driver.rejoin(reason)

    # --- the block ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._driving = self._tasks.create_task(self._run(), name=f"rota member of {self.group_id}")
        if self._pulse is not None:
            self._pulse.keep(self._driver)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pulse is not None:
            self._pulse.release(self._driver)
        try:
            await self._close()
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            self._machine.abandon()
            self._wake.set()
            await self._end_tasks(error)

    async def _close(self) -> None:
        """Let work stop, then tell the group; the driver heartbeats until then, and ends once we have left."""
        self._is_closing = self._holding.is_leaving = True
        if self._driving.done():
            return
        await self._let_go()
        self._leave("the member was closed")
        await asyncio.wait((self._driving,), timeout=_CLOSE_TIMEOUT_S)

    async def _let_go(self) -> None:
        """Let work stop, and learn the id that was asked for: the group would wait for one that could not leave."""
        self._callbacks.add(self._holding.give_all_up)
        await self._callbacks.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._driver.until_named()

    def _leave(self, reason: str) -> None:
        self._driver.react(self._machine.leave(self._now_ms(), reason) if self._leaves else self._machine.abandon())
        self._wake.set()

    async def _end_tasks(self, error: BaseException | None) -> None:
        """Every task is over when this returns. An error of the block goes its own way; one of the tasks is raised."""
        for chore in self._chores:
            chore.cancel()
        cancelled = error if isinstance(error, asyncio.CancelledError) else None
        try:
            await self._tasks.__aexit__(type(cancelled) if cancelled else None, cancelled, None)
        except BaseExceptionGroup as group:
            raise _first_leaf(group) from None
        finally:
            self._broadcast.end()
            self._changed.set()

    def _in_background(self, chore: Coroutine[None, None, None]) -> None:
        """Run something for as long as the block lasts."""
        self._chores.append(self._tasks.create_task(chore))

    # --- stepping aside -----------------------------------------------------------------------

    async def step_aside(self, reason: str) -> None:
        """Stop work in order and leave the group, but not for good: `come_back` joins again, as somebody new."""
        self._holding.is_leaving = True
        await self._let_go()
        self._driver.react(self._machine.step_aside(self._now_ms(), reason))
        self._wake.set()
        while self._machine.state is State.LEAVING:
            await self._changed.wait()

    def withdraw(self, reason: str) -> None:
        """As `step_aside`, at once: what is held is lost, whatever its work is at."""
        self._holding.lose(reason)
        self._driver.react(self._machine.step_aside(self._now_ms(), reason))
        self._wake.set()

    def come_back(self) -> None:
        """Join again after having stepped aside."""
        if self._machine.is_away and not self._is_closing:
            self._holding.is_leaving = False
            self._machine.come_back(self._now_ms())
            self._wake.set()

    # --- what happens -------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._driver.run()
        if self._failure is not None:
            await self._callbacks.drain(_CLOSE_TIMEOUT_S)
            raise self._failure

    def _on_event(self, event: core.Event) -> None:
        match event:
            case core.JoinedAsLeader():
                self._tasks.create_task(self._lead(event))
            case core.Assigned():
                self._holding.take(event)
            case core.RebalanceStarted():
                self._holding.move_on(event)
            case core.Lost():
                self._holding.lose(event.reason)
            case core.Failed():
                self._failure = error_for(event.code, event.detail)
            case core.Unreachable():
                self._broadcast.publish(Unreachable(event.since_ms / 1000))
            case core.Reachable():
                self._broadcast.publish(Reachable())
            case core.AssignmentFailed():
                _log.warning("group %s could not be assigned: %s", self.group_id, event.detail)
                self._broadcast.publish(event)

    async def _lead(self, event: core.JoinedAsLeader) -> None:
        """Assign, and tell all if that fails: an exception here is news for the group, not the end of its leader."""
        try:
            assignments = await call(self._role.assign, event)
            self._machine.assign(event.generation_id, assignments)
        except Exception as error:
            _log.exception("group %s: the assignment failed", self.group_id)
            self._machine.assignment_failed(event.generation_id, f"{type(error).__name__}: {error}")
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """End this member's block with an error, as where a callback raises: work is stopped, and the group left."""
        if self._failure is None:
            self._failure = error
        self._is_closing = self._holding.is_leaving = True
        self._holding.lose(f"{type(error).__name__}: {error}")
        self._callbacks.add(self._leave_broken)

    async def _leave_broken(self) -> None:
        self._leave("its callback raised")


def _first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """A member has one reason to end; that it comes in a group is the task group's business."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
