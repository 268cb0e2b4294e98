"""The task that moves a member: it sends the calls that the state machine plans, one at a time, and applies the
answers.

The rules of a member are pure and live in `rota.core.membership`: the next call, the meaning of an answer, the
deadline of a share. The modules of `rota.client` are the shell around that state machine:

- `Driver` gets the next request from it, sends it through a `Transport`, and returns the answer; it also wakes the
  machine at its alarms (deadlines), even during a call. All changes of the machine's state go through it. `Pulse` is a
  thread that sends heartbeats while the program blocks the event loop.
- `Callbacks` publishes shares in one order, one at a time: `on_revoked` and `on_lost` of an assignment have ended
  before `on_assigned` of the next begins. A member joins again only after that, because a share in use must not be
  assigned to another member. `Holding` is the member's current share; every thread may read it.
- `Commits` sends offsets in the order in which they were stored, one call at a time, and is flushed before a share is
  revoked. So no older commit overwrites a newer one.
- `Member` puts these together. `Role` and its kinds (`Consumer`, `ConnectWorker`, `Election`, `WorkerPool`) define the
  meaning of subscriptions and assignments; `TopicLookout` notifies a leader when the topics under an assignment have
  changed.
- `Twin` (`rota.client.sync`) runs the same objects on an event loop in a thread of its own, for programs without one.

Three clocks must not be confused: deadlines count on `SessionClock`, which includes time asleep; timers run on the
event loop's clock; the coordinator's clock is never compared with either. A deadline counts from when a request was
SENT, not answered: the coordinator renews the session later, so the member stops first.

An exception of a transport or of a user's function does not end the member; only an error code of the coordinator does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from rota.client.calls import retry_delay
from rota.client.clock import SessionClock
from rota.client.errors import CoordinatorUnreachable
from rota.client.options import to_ms
from rota.client.pulse import Beat
from rota.client.stats import MemberStats
from rota.client.tasks import BackgroundTasks
from rota.client.transports.port import Answer, Transport
from rota.core.membership import Event, Membership, MembershipRequest, Planned
from rota.protocol.messages import CommitOffsets, Heartbeat, HeartbeatReply, JoinGroup, Request

_log = logging.getLogger(__name__)


class Driver:
    """Sends a member's calls after `begin`. The deadline is an alarm that fires even during a call."""

    def __init__(
        self,
        machine: Membership,
        transport: Transport,
        tasks: BackgroundTasks,
        stats: MemberStats,
        *,
        jitter: Callable[[], float],
        on_event: Callable[[Event], None],
        on_outcome: Callable[[], None],
    ) -> None:
        """`on_outcome` is called after each call, answered or not."""
        self.wake = asyncio.Event()
        """Set when the plan may have changed."""
        self.changed = asyncio.Event()
        """Set for a moment after each event, and permanently at the end."""
        self._machine = machine
        self._transport = transport
        self._tasks = tasks
        self._stats = stats
        stats.now_ms = self.clock_ms
        self._jitter = jitter
        self._on_event = on_event
        self._on_outcome = on_outcome
        self._beat: Beat | None = None
        self._is_naming = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock: SessionClock | None = None
        self._thread_id = 0

    def begin(self) -> None:
        """Bind to the running loop."""
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._clock = SessionClock(self._loop)

    async def run(self) -> None:
        """Run until the membership has ended."""
        while not self._machine.is_final:
            planned = self._machine.next_request(self.now_ms())
            if planned is None or planned.send_at_ms > self.now_ms():
                await self._rest(None if planned is None else planned.send_at_ms)
            else:
                await self._exchange(planned)
            self.look_at_time()

    def react(self, happened: list[Event]) -> None:
        """Publish the events of the state machine."""
        for event in happened:
            _log.debug("member %s of group %s: %s", self._machine.member_id, self._machine.settings.group_id, event)
            self._on_event(event)
        self.announce()

    def announce(self) -> None:
        """Wake all tasks that wait for a change."""
        self.changed.set()
        if not self._machine.is_final:
            self.changed.clear()

    def look_at_time(self) -> None:
        if happened := self._machine.on_time(self.now_ms()):
            self.react(happened)

    def check(self) -> None:
        """Check the deadlines at once. Any thread may call it."""
        self.on_loop(self._check)

    def rejoin(self, reason: str) -> None:
        """Request that the member join again. Any thread may call it."""
        self.on_loop(lambda: self._rejoin(reason))

    def on_loop(self, act: Callable[[], None]) -> None:
        """Call `act` now, or soon if this is another thread than the loop's."""
        if self._loop is None or threading.get_ident() == self._thread_id:
            act()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)

    async def until_named(self) -> None:
        """Return when no call that assigns a member id is in flight, or the membership has ended.

        `changed` then stays set: waiting for it would block the event loop.
        """
        while self._is_naming and not self._machine.is_final:
            await self.changed.wait()

    def holds(self) -> bool:
        """Return whether a share is held now. Any thread may ask; a clock that has stopped is updated first."""
        beat = self._beat
        if beat is not None and threading.get_ident() != self._thread_id:
            return self._machine.holds_with(self.clock_ms(), beat.request, beat.reply, beat.sent_at_ms)
        return self._machine.holds(self.now_ms())

    def now_ms(self) -> int:
        if (beat := self._beat) is not None and threading.get_ident() == self._thread_id:
            # Apply beats before reading the time: the heartbeat thread may have renewed the session while this one was
            # blocked.
            self._beat = None
            self._machine.on_heartbeat_answer(beat.request, beat.reply, beat.sent_at_ms)
        return self.clock_ms()

    def loop_time(self, at_ms: int | None) -> float | None:
        """Convert a moment to seconds of the event loop's clock."""
        return None if at_ms is None or self._clock is None else self._clock.loop_time(at_ms)

    def seconds(self, at_ms: int) -> float:
        """Convert the moment of an event of a running driver to seconds of the event loop's clock."""
        at = self.loop_time(at_ms)
        assert at is not None
        return at

    async def commit(
        self, request: CommitOffsets, timeout_ms: int, note: Callable[[Answer | CoordinatorUnreachable], None]
    ) -> Answer | CoordinatorUnreachable:
        """Send a commit, independent of planned calls. `note` gets its answer before that renews or ends
        the session.
        """
        sent_at_ms = self.now_ms()
        self._machine.sent(request, sent_at_ms)
        self.wake.set()
        try:
            outcome = await self._try_send(request, timeout_ms)
        finally:
            self._machine.ended(request)
        note(outcome)
        self._apply(request, outcome, sent_at_ms)
        self.wake.set()
        return outcome

    def _check(self) -> None:
        self.look_at_time()
        self.wake.set()

    def _rejoin(self, reason: str) -> None:
        self.react(self._machine.request_rejoin(self.now_ms(), reason))
        self.wake.set()

    async def _rest(self, until_ms: int | None) -> None:
        """Wait until then, until an alarm of the machine, or until the driver is woken."""
        alarms = [at_ms for at_ms in (until_ms, self._machine.alarm_ms) if at_ms is not None]
        try:
            async with asyncio.timeout_at(self.loop_time(min(alarms, default=None))):
                await self.wake.wait()
        except TimeoutError:
            return
        self.wake.clear()

    async def _exchange(self, planned: Planned) -> None:
        """Make one call; cancel it if an event makes it pointless."""
        request, sent_at_ms = planned.request, self.now_ms()
        self._machine.sent(request, sent_at_ms)
        call_task = self._tasks.create(self._try_send(request, planned.timeout_ms))
        call_task.add_done_callback(lambda _: self.wake.set())
        # A new static member parks at once, and one that returns gets its former place.
        self._is_naming = isinstance(request, JoinGroup) and not (request.member_id or request.group_instance_id)
        try:
            while not call_task.done() and self._machine.wants(request, self.now_ms()):
                await self._rest(None)
                if not call_task.done():
                    self.look_at_time()
        finally:
            if self._is_naming:
                self._is_naming = False
                self.announce()
            self._machine.ended(request)
            call_task.cancel()
        if call_task.done() and not call_task.cancelled() and (outcome := call_task.result()) is not None:
            self._apply(request, outcome, sent_at_ms)

    def _apply(
        self, request: MembershipRequest | CommitOffsets, outcome: Answer | CoordinatorUnreachable, sent_at_ms: int
    ) -> None:
        now_ms, jitter = self.now_ms(), self._jitter()
        self._stats.exchanged(request, outcome, sent_at_ms)
        if isinstance(outcome, CoordinatorUnreachable):
            cause, was_sent = str(outcome), outcome.was_sent
            self.react(self._machine.on_failure(request, sent_at_ms, now_ms, jitter, cause, was_sent=was_sent))
        else:
            waits_ms = to_ms(retry_delay(outcome.reply.error, outcome.retry_after_ms / 1000))
            self.react(self._machine.on_reply(request, outcome.reply, sent_at_ms, now_ms, jitter, waits_ms))
        self._on_outcome()

    async def _try_send(self, request: Request, timeout_ms: int) -> Answer | CoordinatorUnreachable:
        """Send and return a failure as an outcome: no exception of a transport ends the member."""
        self._stats.sends(request)
        outcome: Answer | CoordinatorUnreachable
        try:
            outcome = await self._transport.send(request, timeout_ms=timeout_ms)
        except CoordinatorUnreachable as error:
            outcome = error
        except asyncio.CancelledError:
            self._stats.cancelled(request)
            raise
        except Exception as error:
            _log.exception("the transport raised on %s", type(request).__name__)
            outcome = CoordinatorUnreachable(f"the transport raised {type(error).__name__}: {error}")
        self._stats.ended(request, outcome)
        return outcome

    # --- called by the heartbeat thread: see `rota.client.pulse` -------------------------------

    def overdue_heartbeat(self) -> Heartbeat | None:
        now_ms, beat = self.clock_ms(), self._beat
        if beat is not None and now_ms < beat.sent_at_ms + self._machine.settings.session_timeout_ms // 2:
            return None
        return self._machine.overdue_heartbeat(now_ms)

    def clock_ms(self) -> int:
        """Return the clock of this member's deadlines, without the effect of answered heartbeats."""
        return 0 if self._clock is None else self._clock.now_ms()

    def beaten(self, request: Heartbeat, outcome: Answer | CoordinatorUnreachable, sent_at_ms: int) -> None:
        """Count a heartbeat of that thread. Its answer is applied when this member next reads the clock."""
        self._stats.beaten(request, outcome, sent_at_ms)
        if not isinstance(outcome, CoordinatorUnreachable) and isinstance(outcome.reply, HeartbeatReply):
            self._beat = Beat(request, outcome.reply, sent_at_ms)
