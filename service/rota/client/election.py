"""Election of a single writer: candidates campaign in a group, its leader has a term, and the end of the term cancels
its work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

from rota.client.callbacks import Listeners
from rota.client.context import ClientContext
from rota.client.member import Member
from rota.client.options import PREEMPT_AFTER_S, STOP_DRAIN_S, check_seconds, to_ms
from rota.client.roles import Role
from rota.client.running import RunningOver, _keep
from rota.client.stop_deadline import Step, cancelled_for
from rota.client.tasks import Contained, contained, first_of
from rota.client.term import ELECTION, Leadership, Term, Wording
from rota.client.user_functions import WorkRetry, check_async_work, run_work
from rota.core.membership import Assigned, JoinedAsLeader, MembershipSettings
from rota.core.types.leader import PROTOCOL_NAMES, Candidate, encode_candidate, successor_of
from rota.core.types.wire_format import MalformedMetadata, decode_object
from rota.protocol import messages

Outcome = TypeVar("Outcome")

_LEADS: Final[Leadership] = ("leader",)
_LONG_WAIT_S = 60.0
_log = logging.getLogger(__name__)


class CandidateRole(Role[Leadership]):
    """Leadership is held while joining: a coordinator keeps a group's leader as long as it rejoins, until it was asked
    to hand over, has ended its work, and reports that in its join (ADR 63).
    """

    is_cooperative = True

    def __init__(
        self, metadata: bytes = b"", *, priority: int = 0, preempt_after: float | None = PREEMPT_AFTER_S
    ) -> None:
        """Raise `ValueError` for a priority with metadata that is no JSON object, which a coordinator cannot read."""
        check_seconds("preempt_after", preempt_after, optional=True)
        self._opaque = metadata
        self._said = _fields(metadata)
        if self._said is None and priority:
            raise ValueError("a candidate with a priority has no metadata, or a JSON object")
        self._candidate = Candidate(priority=priority, preempt_after_ms=to_ms(preempt_after))
        self.hands_over = False
        """This leader was asked to hand over: its work may continue until it joins again."""

    def protocols(self, held: Leadership | None, generation_id: int) -> tuple[messages.Protocol, ...]:  # noqa: ARG002
        if self._said is None:
            return (messages.Protocol(PROTOCOL_NAMES[0], self._opaque),)
        candidate = replace(self._candidate, holding=bool(held))
        return (messages.Protocol(PROTOCOL_NAMES[0], encode_candidate(candidate, self._said)),)

    def assign(self, generation: JoinedAsLeader) -> dict[str, bytes]:  # noqa: ARG002
        """Assign no data: each member's answer already names the leader."""
        return {}

    def read(self, assigned: Assigned) -> Leadership:
        self.hands_over = assigned.is_leader and self._said is not None and bool(successor_of(assigned.assignment))
        return _LEADS if assigned.is_leader and not self.hands_over else ()

    def without(self, share: Leadership, other: Leadership) -> Leadership:
        return () if other else share


def _fields(metadata: bytes) -> dict[str, Any] | None:
    """Return the user's metadata as a JSON object; None for other bytes."""
    try:
        return decode_object(metadata) if metadata else {}
    except MalformedMetadata:
        return None


class Election(RunningOver):
    """A candidacy, for the time of an `async with` block, or from `start` to `close`.

        async with client.leader("billing-writer") as election:
            await election.run(write)          # calls write(term) in each term; cancelled when the term is lost

    `terms` yields the terms instead. Leaving the block ends the body first, then the leadership, so another candidate
    leads at once.
    """

    _wording: ClassVar[Wording] = ELECTION

    def __init__(
        self,
        context: ClientContext,
        settings: MembershipSettings,
        *,
        role: Role[Leadership],
        leave_on_close: bool | None = None,
    ) -> None:
        listeners: Listeners[Leadership] = Listeners(self._on_assigned, self._on_revoked, self._on_lost)
        self.member: Member[Leadership] = Member(
            context, settings, role=role, listeners=listeners, leave_on_close=leave_on_close
        )
        """The candidate's membership, for calls that do not concern leading."""
        super().__init__(self.member)
        self.member._stats.set_kind(self._wording.subject)
        self.member._reminder.at_work = self._describe_work
        self._retry = WorkRetry(context.jitter, self.member._stats.now_ms)
        self._term: Term | None = None
        self._elected = asyncio.Event()
        self._is_over = False
        self._drain_s = STOP_DRAIN_S
        self._has_retired = False
        """`run` has ended: a new term would have no work."""
        self._resigning: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.member.__aenter__()
        self.member._in_background(self._log_long_wait())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.member.__aexit__(kind, error, trace)
        finally:
            self._finish()

    def _finish(self) -> None:
        self._end(f"{self._wording.candidacy} is over")
        self._is_over = True
        self._elected.set()

    # --- current state ------------------------------------------------------------------------

    @property
    def term(self) -> Term | None:
        """The current term; None while this candidate does not lead. Any thread may ask."""
        term = self._term
        return term if term is not None and term.is_valid else None

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads now, by the clock. Any thread may ask."""
        return self.term is not None

    @property
    def valid_until(self) -> float | None:
        """The expiry of the known state: of this candidate's term, or of another candidate's lead."""
        return self.member.valid_until

    @property
    def unreachable_since(self) -> float | None:
        """The time since which the coordinator is unreachable: see `Member.unreachable_since`."""
        return self.member.unreachable_since

    @property
    def trouble(self) -> str:
        """Why calls are not served now: see `Member.trouble`."""
        return self.member.trouble

    @property
    def failure(self) -> BaseException | None:
        """With `run(retry=True)`, the work's last exception; None after it has run well for half a minute."""
        return self._retry.failure

    # --- leading ------------------------------------------------------------------------------

    async def terms(self) -> AsyncIterator[Term]:
        """Yield each term when it starts. The next one follows after the former has ended."""
        await self._until_entered()
        while True:
            await first_of(self._elected, self.member._over)
            if self._is_over or self.member.is_over or self._term is None:
                return
            term = self._term
            self.member._driver.check()
            if term.is_valid:
                yield term
            await term.lost.wait()

    async def run(
        self,
        work: Callable[[Term], Awaitable[Outcome]],
        *,
        drain_timeout: float = STOP_DRAIN_S,
        handle_signals: bool = True,
        retry: bool = False,
    ) -> Outcome | None:
        """Wait to be elected and call `work(term)` in each term, until it returns or raises. Returning resigns: this
        candidate does not campaign again until `run` is called again.

        SIGTERM and SIGINT end it in order, unless the program handles them: `term.stopping` is set, the work is
        cancelled (after `drain_timeout` if it reads `term.stopping`), the group is left, and None is returned. A second
        signal cancels at once. This returns at most 2.5 s after `drain_timeout`, even if the work ignores its
        cancellation.

        Args:
            work: An async function that works while this candidate leads.
            drain_timeout: Time for work that reads `term.stopping`, after a signal or a request to hand over.
            handle_signals: Whether SIGTERM and SIGINT are handled here.
            retry: If `work` raises, campaign again after a growing pause instead of raising; see `failure`.

        Raises:
            LeadershipLost: The block was left during the run.
            TypeError: `work` is no async function.
            RuntimeError: The election was closed, or its `run` is already running.
        """
        check_async_work(work)
        with self._only_run(drain_timeout):
            async with self._own_block_for_run():
                return await self._run(work, drain_timeout, handle_signals, retry)

    async def resign(self, reason: str = "resigned", *, pause: float = 0.0) -> None:
        """End the term in order, let another candidate lead, and campaign again after `pause`, last in the queue.

        If the term's own body calls this, the body is cancelled here. The resignation completes even if the caller is
        cancelled.
        """
        check_seconds("pause", pause)
        await self._until_entered()
        if self._is_over:
            return
        resigning = self._begin_resign(reason, pause)
        if not self._is_inside():
            # The outcome is ignored: a candidacy that is closed meanwhile need not resign.
            await asyncio.wait((resigning,))

    def _begin_resign(self, reason: str, pause_s: float = 0.0) -> asyncio.Task[None]:
        """Resign as `resign` does, in a separate task."""
        if self._resigning is None or self._resigning.done():
            stepping = self.member._begin_step_aside(reason)
            self._resigning = self.member._in_background(self._come_back_after(stepping, pause_s))
        return self._resigning

    async def _come_back_after(self, stepping: asyncio.Task[None], pause_s: float) -> None:
        await asyncio.wait((stepping,))
        await asyncio.sleep(pause_s)
        if not self._has_retired:
            self.member.come_back()

    # --- run ----------------------------------------------------------------------------------

    async def _run(
        self, work: Callable[[Term], Awaitable[Outcome]], drain_s: float, handle_signals: bool, retry: bool
    ) -> Outcome | None:
        """Campaign until stopped; the end of either the campaign or the wait for a stop ends both."""
        self._drain_s = drain_s
        stopping = asyncio.ensure_future(contained(self._run_until_stopped(handle_signals, drain_s)))
        campaigning = asyncio.ensure_future(contained(self._campaign(work, retry)))
        try:
            await asyncio.wait((stopping, campaigning), return_when=asyncio.FIRST_COMPLETED)
            if self._stops.in_order.is_set() or not campaigning.done():
                (await stopping).result()
            if not campaigning.done():
                await self.member._deadline.wait((campaigning,), Step.END)
            return self._outcome(campaigning)
        finally:
            await self._end_run(stopping, campaigning)

    def _outcome(self, campaigning: asyncio.Future[Contained[Outcome]]) -> Outcome | None:
        """Return the work's result or raise its error; None if it was stopped before."""
        ended = campaigning.result() if campaigning.done() and not campaigning.cancelled() else None
        if ended is not None and not isinstance(ended.error, self._wording.error):
            return ended.result()
        if self._stops.in_order.is_set():
            return None
        raise (ended and ended.error) or self._wording.error(f"{self._wording.candidacy} is over")

    async def _end_run(self, stopping: asyncio.Future[Any], campaigning: asyncio.Future[Any]) -> None:
        """End the run: remaining tasks and the remaining term are ended."""
        self._has_retired = True
        deadline = self.member._deadline
        for task in (stopping, campaigning):
            task.cancel()
            _keep(task)
        try:
            await deadline.wait((stopping, campaigning), Step.END)
        finally:
            if self.member.is_open:
                await deadline.wait((self.member._begin_step_aside("its run has ended"),), Step.END)

    async def _campaign(self, work: Callable[[Term], Awaitable[Outcome]], retry: bool) -> Outcome:
        self._has_retired = False
        while True:
            self.member.come_back()
            try:
                return await self._lead(work)
            except Exception as error:
                if not retry or self._is_over:
                    raise
                self._retry.fail(error)
                pause_s = self._retry.pause_s
                _log.exception(
                    "%s %s: the work raised; it joins the election again in %.1f s",
                    self._wording.subject,
                    self.member.group_id,
                    pause_s,
                )
                await asyncio.wait((self._begin_resign(f"its work raised {type(error).__name__}", pause_s),))

    async def _lead(self, work: Callable[[Term], Awaitable[Outcome]]) -> Outcome:
        async for term in self.terms():
            try:
                async with term:
                    self._retry.begin()
                    return await run_work(work, term)
            except self._wording.error as lost:
                if not term._is_end_of(lost):
                    raise  # The loss is another election's: this one is still led, and its work ended with an error.
                await first_of(term.lost, self.member._over)
                level = logging.WARNING if term.reason == self._wording.lost else logging.INFO
                _log.log(level, "%s %s: %s", self._wording.subject, self.member.group_id, lost)
        raise self._wording.error(f"{self._wording.candidacy} is over")

    # --- closing ------------------------------------------------------------------------------

    async def _log_long_wait(self) -> None:
        """Log once why this candidate waits: a program that takes the same lock twice would wait silently."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONG_WAIT_S):
                await self._elected.wait()
                return
        what = await self._describe_wait()
        _log.info("%s %s: waiting for %.0f s: %s", self._wording.subject, self.member.group_id, _LONG_WAIT_S, what)

    async def _describe_wait(self) -> str:
        return self.trouble or f"{self.member._machine.leader_id or 'no candidate'} leads"

    def _closed(self) -> None:
        self._finish()

    # --- callbacks ----------------------------------------------------------------------------

    def _on_assigned(self, _added: Leadership, held: Leadership) -> None:
        if held and (self._term is None or self._term.lost.is_set()):
            self._term = self._new_term()
            self._elected.set()

    def _new_term(self) -> Term:
        return Term(self.member)

    async def _on_revoked(self, _removed: Leadership) -> None:
        term = self._term
        if term is not None and not term.lost.is_set() and (term._is_handed_over() or self._stops.in_order.is_set()):
            term._stopping.set()
            if term._is_watched:
                left = asyncio.ensure_future(term._left.wait())
                await self.member._deadline.wait((left,), Step.WORK, self._drain_s)
                left.cancel()
        term = self._end(f"{self._wording.held} was handed over")
        if term is not None:
            await term._left.wait()

    async def _on_lost(self, _removed: Leadership) -> None:
        """Keep a candidate whose work continues: it neither leaves nor leads again before that ends."""
        term = self._end(self._wording.lost)
        if term is not None:
            await term._left.wait()

    def _describe_work(self) -> str:
        term = self._term
        if term is None or term._left.is_set():
            return self.member._holding.at_work()
        return f"the work of {self._wording.subject} {self.member.group_id}{cancelled_for(term._cancelled_at)}"

    def _end(self, reason: str) -> Term | None:
        if self._term is not None:
            self._elected.clear()
            self._term._end(reason)
        return self._term
