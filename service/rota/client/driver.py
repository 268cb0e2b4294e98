"""What moves a member: it sends what the state machine plans, one call at a time, and hears what comes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from rota.client.calls import patience_ms
from rota.client.errors import CoordinatorUnreachable
from rota.client.pulse import Beat
from rota.client.transports.port import Answer, Transport
from rota.membership import Event, Membership, MembershipRequest, Planned
from rota.protocol.messages import CommitOffsets, Heartbeat, JoinGroup, Request

_log = logging.getLogger(__name__)


class Driver:
    """The deadline is an alarm that rings whether or not a call is under way. Lives as one of its member's `tasks`."""

    def __init__(
        self,
        machine: Membership,
        transport: Transport,
        tasks: asyncio.TaskGroup,
        *,
        jitter: Callable[[], float],
        on_event: Callable[[Event], None],
    ) -> None:
        self.wake = asyncio.Event()
        """To be set when what is planned may be something else."""
        self.changed = asyncio.Event()
        """Set for a moment whenever something has happened, and for good at the end."""
        self._machine = machine
        self._transport = transport
        self._tasks = tasks
        self._jitter = jitter
        self._on_event = on_event
        self._beat: Beat | None = None
        self._is_naming = False

    async def run(self) -> None:
        """Until the membership has come to its end."""
        while not self._machine.is_final:
            planned = self._machine.next_request(self.now_ms())
            if planned is None or planned.send_at_ms > self.now_ms():
                await self._rest(None if planned is None else planned.send_at_ms)
            else:
                await self._exchange(planned)
            self.look_at_time()

    def react(self, happened: list[Event]) -> None:
        """Tell what the state machine says."""
        for event in happened:
            _log.debug("member %s of group %s: %s", self._machine.member_id, self._machine.settings.group_id, event)
            self._on_event(event)
        self.changed.set()
        if not self._machine.is_final:
            self.changed.clear()

    def look_at_time(self) -> None:
        self.react(self._machine.on_time(self.now_ms()))

    def rejoin(self, reason: str) -> None:
        self.react(self._machine.request_rejoin(self.now_ms(), reason))
        self.wake.set()

    async def until_named(self) -> None:
        """Return once no call is under way that gives a new member its id."""
        while self._is_naming:
            await self.changed.wait()

    def now_ms(self) -> int:
        if (beat := self._beat) is not None:
            # Before time is looked at, what was heard meanwhile, by the thread that is not blocked when this one is.
            self._beat = None
            self._machine.heard(beat.request, beat.reply, beat.sent_at_ms)
        # Loops ring timers up to their clock's resolution too soon: what is due must not read as not yet.
        return int(asyncio.get_running_loop().time() * 1000 + 1e-3)

    async def commit(self, request: CommitOffsets, timeout_ms: int) -> Answer | CoordinatorUnreachable:
        """Beside the calls that are planned. Its answer renews the session, or tells that it is over."""
        sent_at_ms = self.now_ms()
        outcome = await self._try_send(request, timeout_ms)
        self._hear(request, outcome, sent_at_ms)
        self.wake.set()
        return outcome

    async def _rest(self, until_ms: int | None) -> None:
        """Wait until then, until the deadline, or until something wakes the driver."""
        alarms = [at_ms for at_ms in (until_ms, self._machine.deadline_ms) if at_ms is not None]
        try:
            async with asyncio.timeout_at(min(alarms) / 1000 if alarms else None):
                await self.wake.wait()
        except TimeoutError:
            return
        self.wake.clear()

    async def _exchange(self, planned: Planned) -> None:
        """One call, unless what happens meanwhile makes it pointless: then it is hung up."""
        request, sent_at_ms = planned.request, self.now_ms()
        call_task = self._tasks.create_task(self._try_send(request, planned.timeout_ms))
        call_task.add_done_callback(lambda _: self.wake.set())
        # Of a static member it parks, and one that comes back takes that place.
        self._is_naming = isinstance(request, JoinGroup) and not (request.member_id or request.group_instance_id)
        try:
            while not call_task.done() and self._machine.wants(request, self.now_ms()):
                await self._rest(None)
                if not call_task.done():
                    self.look_at_time()
        finally:
            self._is_naming = False
            call_task.cancel()
        if call_task.done() and not call_task.cancelled():
            self._hear(request, call_task.result(), sent_at_ms)

    def _hear(
        self, request: MembershipRequest | CommitOffsets, outcome: Answer | CoordinatorUnreachable, sent_at_ms: int
    ) -> None:
        now_ms, jitter = self.now_ms(), self._jitter()
        if isinstance(outcome, CoordinatorUnreachable):
            self.react(self._machine.on_failure(request, sent_at_ms, now_ms, jitter))
        else:
            waits_ms = patience_ms(outcome.reply.error, outcome.retry_after_ms)
            self.react(self._machine.on_reply(request, outcome.reply, sent_at_ms, now_ms, jitter, waits_ms))

    async def _try_send(self, request: Request, timeout_ms: int) -> Answer | CoordinatorUnreachable:
        """That nobody answers is an outcome here, not an exception: it must not end the tasks beside it."""
        try:
            return await self._transport.send(request, timeout_ms=timeout_ms)
        except CoordinatorUnreachable as error:
            return error

    # --- being kept alive by another thread: see `rota.client.pulse.Beating` ------------------

    def overdue_heartbeat(self) -> Heartbeat | None:
        now_ms, beat = int(time.monotonic() * 1000), self._beat
        if beat is not None and now_ms < beat.sent_at_ms + self._machine.settings.session_timeout_ms // 2:
            return None
        return self._machine.overdue_heartbeat(now_ms)

    def note_beat(self, beat: Beat) -> None:
        """Looked at when this member next reads the clock."""
        self._beat = beat
