"""One member of one group: joins, leads, syncs, heartbeats, rejoins and leaves in the background.

Two tasks matter. The driver (`driver.py`) sends what the state machine of `rota.membership` plans. The user's callbacks
(`holding.py`) run beside it, one after the other, so that slow work never keeps a heartbeat waiting. Closing and
stepping aside go on in tasks of their own: the task that asked for it may be part of the work that has to end first.

A share that was handed over (`on_assigned`) is ended on every way out: by `on_revoked`, or by `on_lost` where it is too
late for that, where the member fails, and where the close timeout is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

from rota.client.callbacks import CallbackQueue, Listeners, is_inside
from rota.client.calls import Caller
from rota.client.commits import Commits
from rota.client.context import ClientContext
from rota.client.driver import Driver
from rota.client.errors import MembershipLost, error_for
from rota.client.events import Assigned, Broadcast, GenerationFailed, MemberEvent, Reachable, Rejected, Unreachable
from rota.client.holding import Holding
from rota.client.leading import Leading
from rota.client.reminders import Reminder
from rota.client.roles import Role
from rota.client.running import Running
from rota.client.seconds import STOP_DRAIN_S
from rota.client.stats import MemberStats
from rota.client.stop_deadline import Step, StopDeadline
from rota.client.tasks import BackgroundTasks
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

_log = logging.getLogger(__name__)


class _MemberEnded(Exception):
    """Cancels the block's body; the member's own failure is raised in its place."""


class Member(Running, Generic[Share]):
    """A membership, for the time of an `async with` block, or from `start` to `close`.

    Leaving the block is two-phase: `on_revoked` finishes first, then the group is left. If the coordinator refuses
    this member for good (`FencedInstanceId`, `InvalidRequest`, …) or a callback raises, the block is
    cancelled and that error comes out of it, unless the body raises one of its own.

    `Share` is what an assignment means to the user: what its role reads in it.
    """

    _kind = "member"

    def __init__(
        self,
        context: ClientContext,
        settings: MembershipSettings,
        *,
        role: Role[Share],
        listeners: Listeners[Share] | None = None,
        leave_on_close: bool | None = None,
    ) -> None:
        """`leave_on_close`: whether closing sends a LeaveGroup; by default static members do not, they come back."""
        super().__init__()
        self._context = context
        self._stats = MemberStats(context.stats, settings.namespace, settings.group_id, self._kind)
        self._caller = Caller(context.transport, jitter=context.jitter, stats=self._stats)
        self._machine = Membership(settings)
        self._deadline = StopDeadline()
        self._role = role
        self._is_static = settings.group_instance_id is not None
        self._leaves = not self._is_static if leave_on_close is None else leave_on_close
        self._jitter = context.jitter
        self._block = asyncio.TaskGroup()
        self._tasks = BackgroundTasks(self._fail)
        self._callbacks = CallbackQueue(id(self), self._fail)
        self._broadcast: Broadcast[Share] = Broadcast()
        self._driver = Driver(
            self._machine,
            context.transport,
            self._tasks,
            self._stats,
            jitter=context.jitter,
            on_event=self._on_event,
            on_outcome=self._on_outcome,
        )
        self._commits: Commits[Share] = Commits(
            self._machine, role, self._driver, self._tasks, context.jitter, self._stats
        )
        self._holding: Holding[Share] = Holding(
            self._machine,
            role,
            listeners or Listeners(),
            self._driver,
            self._callbacks,
            self._broadcast,
            self._fail,
            self._commits.flush,
            self._commits.drop,
            self._stats,
            self._deadline,
        )
        self._commits.belong_to(self._holding)
        self._wake = self._driver.wake
        self._changed = self._driver.changed
        self._failure: BaseException | None = None
        self._driving: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        """The driving task, until it has learnt all that it needs to join."""
        self._closing: asyncio.Task[None] | None = None
        self._leading = Leading(self._machine, role, self._driver, self._tasks, settings.group_id)
        self._stepping: asyncio.Task[None] | None = None
        self._failed_unit = ""
        self._comes_back = False
        self._over = asyncio.Event()
        self._reminder = Reminder(f"group {self.group_id}", self._holding.at_work)

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
        """The generation; -1 while in none. What you write to compares `fencing_token` instead."""
        return self._machine.generation_id

    @property
    def fencing_token(self) -> int:
        """The fencing token, -1 in no generation. The next process with this `group_instance_id` gets a higher one."""
        return self._machine.fencing_token

    @property
    def is_leader(self) -> bool:
        """Whether this member leads the generation that it is in."""
        return self._machine.is_leader

    @property
    def assignment(self) -> Share | None:
        """What this member may act on now, by the clock, also after a blocked event loop or a sleeping machine; None if
        nothing. Any thread may ask.
        """
        current = self._holding.current
        return current.share if current is not None and self._driver.holds() else None

    @property
    def valid_until(self) -> float | None:
        """When `assignment` ends unless it is renewed, in seconds of the event loop's clock; None if nothing is held.

        Always earlier than the moment from which the coordinator may give it to another member.
        """
        return self._driver.loop_time(self._machine.deadline_ms)

    @property
    def unreachable_since(self) -> float | None:
        """Since when no answer came, once that cost a heartbeat; None while they come. Unreachable is not lost."""
        return self._driver.loop_time(self._machine.unreachable_since_ms)

    @property
    def trouble(self) -> str:
        """Why this member's calls are not served now, once that has lasted a second; empty while they are."""
        return self._machine.trouble

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""
        return self._driving is not None and self._closing is None

    @property
    def _is_new(self) -> bool:
        return self._driving is None and self._closing is None

    @property
    def is_over(self) -> bool:
        """Whether this member was closed, or has failed."""
        return self._over.is_set()

    def _now_ms(self) -> int:
        return self._driver.now_ms()

    # --- waiting and watching -----------------------------------------------------------------

    async def wait_assigned(self) -> Assigned[Share]:
        """Return as soon as this member holds something (which may be nothing at all to do).

        Raises:
            MembershipLost: The member was closed meanwhile.
            CoordinatorError: The coordinator refuses this member for good.
            RuntimeError: The block was not entered.
        """
        await self._until_entered()
        while (current := self._holding.current) is None or self.assignment is None:
            if self._failure is not None:
                raise self._failure
            if self._machine.is_final:
                raise MembershipLost("the member is closed")
            await self._changed.wait()
        return current

    async def events(self) -> AsyncIterator[MemberEvent[Share]]:
        """The events of this member, beginning with its current share. For watching: callbacks stop the work."""
        await self._until_entered()
        async for event in self._broadcast.listen(self._holding.current):
            yield event
        if self._failure is not None:
            raise self._failure

    # --- progress and fences ------------------------------------------------------------------

    async def commit(self, offsets: Iterable[OffsetToCommit]) -> None:
        """Record progress, fenced by the generation that is held now.

        Commits are sent in the order of the calls, also if the caller is cancelled. They are repeated while the
        coordinator cannot be reached, and after a resync or a cooperative rebalance in which this member kept its
        share.

        As in Kafka, the fence is the generation, not the assignment: commit only what is in `assignment`.

        Raises:
            MembershipLost: Nothing is held, or the generation is over: nothing was committed.
            RebalanceInProgress: The group is between two generations: nothing was committed.
            CoordinatorUnreachable: It is not known whether it was committed, and nothing is held any more.
            InvalidRequest: An offset is one that no coordinator accepts: nothing was committed. With the code
                `OFFSET_METADATA_TOO_LARGE` the partitions in its detail were not committed, all others were.
        """
        await self._until_entered()
        await asyncio.shield(self._commits.add(tuple(offsets)))

    async def fetch_offsets(self, topics: Sequence[TopicPartitions] | None = None) -> tuple[FetchedOffset, ...]:
        """The group's committed offsets; an offset of -1 where nothing was committed."""
        settings = self._machine.settings
        wanted = None if topics is None else tuple(topics)
        reply = await self._caller.ask(FetchOffsets(settings.namespace, settings.group_id, wanted), FetchReply)
        self._commits.note_fetched(reply.offsets)
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

        It is valid for a minute or so (`fence_token_ttl_ms`). `rota.fencing.tokens.Fence` checks it.

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
        """Have the group rebalance (as the leader), or bring this member's part of it up to date. Any thread may call
        it, and callbacks, too.
        """
        self._driver.rejoin(reason)

    # --- the block ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._check_new()
        self._context.check_usable()
        await self._block.__aenter__()
        self._driver.begin()
        if self._context.pulse is not None:
            self._context.pulse.keep(self._driver)  # Before anything else runs: a process may have no thread left.
        self._driving = self._tasks.create(self._drive(), name=f"rota member of {self.group_id}")
        self._block.create_task(self._watch(self._driving))
        self._context.members.add(self)
        self._stats.begin(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancelled = error if isinstance(error, asyncio.CancelledError) else None
        try:
            await asyncio.shield(self._begin_close(STOP_DRAIN_S))
        except asyncio.CancelledError as while_closing:
            cancelled = while_closing
            await asyncio.wait((self._begin_close(0.0),))
        await self._end_block(error, cancelled)

    async def _end_block(self, error: BaseException | None, cancelled: asyncio.CancelledError | None) -> None:
        """Raise a cancellation from outside, or the member's own failure; an error of the body goes its own way."""
        with suppress(_MemberEnded):
            try:
                await self._block.__aexit__(type(cancelled) if cancelled else None, cancelled, None)
            except BaseExceptionGroup as group:
                raise _MemberEnded from group
        failure = self._failure
        if failure is None or failure is error:
            return
        if error is None or isinstance(error, asyncio.CancelledError):
            raise failure
        _log.error("member of %s had failed before its `async with` block raised", self.group_id, exc_info=failure)
        error.add_note(f"rota: the member itself had failed: {type(failure).__name__}: {failure}")

    async def _drive(self) -> None:
        self._preparing = asyncio.current_task()
        await self._before_joining()
        self._preparing = None
        await self._driver.run()

    async def _before_joining(self) -> None:
        """For what must be known before the first join."""

    async def _watch(self, driving: asyncio.Task[None]) -> None:
        """Cancel the block's body once the member has ended for a reason of its own."""
        await asyncio.wait((driving,))
        if self._failure is not None:
            self._deadline.shorten()
            await self._callbacks.drain(self._deadline, Step.WORK)
            raise _MemberEnded

    # --- closing ------------------------------------------------------------------------------

    async def _close(self, drain_s: float) -> None:
        await asyncio.shield(self._begin_close(drain_s))

    def _close_now(self) -> None:
        self._deadline.shorten(0.0)

    def _is_inside(self) -> bool:
        return is_inside(id(self))

    async def _until_over(self) -> None:
        await self._over.wait()

    def _failure_at_end(self) -> BaseException | None:
        return self._failure

    def _begin_close(self, drain_s: float) -> asyncio.Task[None]:
        """Closing goes on in a task of its own, whatever becomes of those that wait for it."""
        self._deadline.shorten(drain_s)
        if self._closing is None:
            self._holding.is_leaving = True
            self._closing = asyncio.create_task(self._close_in_order())
        return self._closing

    async def _close_in_order(self) -> None:
        """Let work stop, then leave the group; the driver heartbeats until then, and ends once we have left."""
        if self._driving is not None and not self._driving.done():
            has_stopped = await self._let_go()
            await self._before_leaving(Step.LOSS)
            self._leave(sends=has_stopped)
            if self._preparing is not None:
                self._preparing.cancel()
            if not await self._deadline.wait((self._driving,), Step.LEAVE):
                _log.warning("group %s was not left: no answer before the end of this stop", self.group_id)
        else:  # Work in a thread cannot be cancelled: it ends by itself, if at all.
            await self._callbacks.drain(self._deadline, Step.LEAVE)
        await self._end()

    async def _before_leaving(self, step: Step) -> None:
        """For what must be done while this is still a member, and before all tasks end, on every way out."""

    async def _end(self) -> None:
        """Every task is over when this returns, but for callbacks that ignore their cancellation."""
        if self._context.pulse is not None:
            self._context.pulse.release(self._driver)
        self._machine.abandon()
        self._wake.set()
        await self._before_leaving(Step.END)
        await self._tasks.cancel(self._deadline.left_s(Step.END))
        self._callbacks.cancel()
        await self._callbacks.drain(self._deadline, Step.END)
        self._context.troubles.over(self, was_closed=True)
        self._context.members.discard(self)
        self._stats.end()
        self._broadcast.end()
        self._changed.set()
        self._over.set()

    async def _let_go(self) -> bool:
        """Let work stop, and learn the id that was asked for: the group would wait for one that could not leave.

        False where work goes on although its share was lost to it: then only the session may end the membership.
        """
        drain, deadline = self._callbacks.drain, self._deadline
        self._holding.is_given_up = True
        self._reminder.start()
        self._callbacks.add(self._holding.give_all_up)
        has_stopped = await drain(deadline, Step.CLEAN_UP)
        if not has_stopped and not (self._holding.stopped and await drain(deadline, Step.LOSS)):
            _log.error("group %s: %s has not ended in time, and is cancelled", self.group_id, self._reminder.at_work())
            self._holding.lose("closed before on_revoked had returned")
            if not await drain(deadline, Step.LOSS):
                _log.error(
                    "group %s: %s ignores its cancellation: the group is not left, "
                    "so that no other member is assigned its share before the session expires",
                    self.group_id,
                    self._reminder.at_work(),
                )
                return False
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline.left_s(Step.LOSS)):
                await self._driver.until_named()
        self._reminder.stop()
        return True

    def _leave(self, *, sends: bool) -> None:
        reason = "the member was closed" if self._failure is None else "its callback raised"
        if self._failed_unit:
            reason = f"its work on {self._failed_unit} raised {self._failure!r}"
        leaves, now_ms = self._leaves and sends, self._now_ms()
        unit = self._failed_unit
        self._driver.react(self._machine.leave(now_ms, reason, unit) if leaves else self._machine.abandon())
        self._wake.set()

    def _in_background(self, chore: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something for as long as the member lives; an exception of it ends the member."""
        return self._tasks.create(chore)

    async def run(self, *, drain_timeout: float = STOP_DRAIN_S, handle_signals: bool = True) -> None:
        """Be a member until a signal, `stop` or cancellation; inside or outside of the block.

        SIGTERM and SIGINT stop in order, unless the program handles them: `on_revoked` is awaited for `drain_timeout`,
        and the group is left. A second signal cancels. This returns at most 2.5 s after that time.
        """
        with self._only_run(drain_timeout):
            async with self._own_block_for_run():
                await self._run_until_stopped(handle_signals, drain_timeout)

    async def _until_settled(self) -> None:
        """Return when the member is in no rebalance and in no callback, or holds nothing."""
        while self.assignment is not None and not (self._machine.state is State.STABLE and self._callbacks.is_idle):
            if not self._callbacks.is_idle:
                await self._callbacks.drain(self._deadline, Step.END)
            else:
                await self._changed.wait()

    # --- stepping aside -----------------------------------------------------------------------

    async def step_aside(self, reason: str) -> None:
        """Stop work in order and leave the group, but not for good: `come_back` joins again, as a new member.

        Called by a callback it returns at once, and the member steps aside when its callbacks have returned.
        """
        await self._until_entered()
        stepping = self._begin_step_aside(reason)
        if not self._is_inside():
            await asyncio.wait((stepping,))

    def _begin_step_aside(self, reason: str, failed_unit: str = "") -> asyncio.Task[None]:
        """As `step_aside`, in a task of its own, which goes on whatever becomes of those that wait for it."""
        if self._stepping is None or self._stepping.done():
            self._comes_back = False
            self._holding.is_leaving = True
            self._stats.steps_out("stepped_aside")
            self._stepping = self._tasks.create(self._step_aside(reason, failed_unit))
        return self._stepping

    async def _step_aside(self, reason: str, failed_unit: str) -> None:
        self._deadline.shorten()
        has_stopped = await self._let_go()
        if self._closing is not None:
            return
        now_ms = self._now_ms()
        self._driver.react(self._machine.step_aside(now_ms, reason, failed_unit, silently=not has_stopped))
        self._wake.set()
        while self._machine.state is State.LEAVING:
            await self._changed.wait()
        if self._comes_back:
            self._join_again()

    def _withdraw(self, reason: str) -> None:
        """As `step_aside`, at once: the share is lost, whatever its work is doing. Static members keep their place."""
        self._stats.steps_out("no_progress")
        self._holding.lose(reason)
        self._driver.react(self._machine.step_aside(self._now_ms(), reason, silently=self._is_static))
        self._wake.set()

    def come_back(self) -> None:
        """Join again after having stepped aside; as soon as this member has left, where that is still under way."""
        self._comes_back = self._stepping is not None and not self._stepping.done()
        if not self._comes_back:
            self._join_again()

    def _join_again(self) -> None:
        if self._machine.is_away and self._closing is None:
            self._holding.is_leaving = self._holding.is_given_up = False
            self._deadline.lift()
            self._reminder.stop()
            # Its subscription may have changed since it stepped aside.
            self._machine.say(self._role.protocols(None, -1))
            self._machine.come_back(self._now_ms())
            self._wake.set()

    # --- what happens -------------------------------------------------------------------------

    def _on_event(self, event: core.Event) -> None:
        self._stats.observe(event)
        match event:
            case core.JoinedAsLeader():
                self._leading.begin(event)
            case core.Assigned():
                self._holding.take(event)
            case core.RebalanceStarted():
                self._holding.move_on(event)
            case core.Lost():
                self._holding.lose(event.reason)
            case core.Failed():
                self._failure = error_for(event.code, event.detail)
            case core.Unreachable():
                self._broadcast.publish(Unreachable(self._driver.seconds(event.since_ms), event.cause))
                self._context.troubles.publish(self, event.cause, event.since_ms)
            case core.Rejected():
                self._broadcast.publish(Rejected(self._driver.seconds(event.since_ms), event.code, event.cause))
                self._context.troubles.publish(self, event.cause, event.since_ms)
            case core.Reachable():
                self._broadcast.publish(Reachable())
                self._context.troubles.over(self)
            case core.AssignmentFailed():
                _log.warning("group %s could not be assigned: %s", self.group_id, event.detail)
                self._broadcast.publish(GenerationFailed(event.generation_id, event.detail))

    def _on_outcome(self) -> None:
        if cause := self._machine.trouble:
            self._context.troubles.repeat(self, cause)

    def _fail(self, error: BaseException, failed_unit: str = "") -> None:
        """End the block with an error. A `failed_unit`, as `docs/3`, is reported; other work stops in order first."""
        self._fail_in_order(error, failed_unit)
        if not failed_unit:
            self._holding.lose(f"{type(error).__name__}: {error}")

    def _fail_in_order(self, error: BaseException, failed_unit: str) -> None:
        """Close with an error: what was stored is committed. `failed_unit` is reported, if there is one."""
        if self._failure is None:
            self._failure, self._failed_unit = error, failed_unit
        self._begin_close(STOP_DRAIN_S)
