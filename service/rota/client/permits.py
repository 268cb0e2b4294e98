"""Permits and locks: N of M members hold one at a time, each with its own fencing token (ADR 62)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import ClassVar, Final, cast

from rota.client.callbacks import Listener, notify
from rota.client.context import ClientContext
from rota.client.election import Election, Outcome
from rota.client.errors import CoordinatorError, PermitLost
from rota.client.member import Member
from rota.client.options import STOP_DRAIN_S
from rota.client.roles import Role
from rota.client.running import RunningOver
from rota.client.term import Leadership, Term, Wording
from rota.core.membership import Assigned, MembershipSettings
from rota.core.types.permits import MAX_PERMITS, PROTOCOL_NAME, PermitShare, Wish, decode_share, encode_wish
from rota.protocol import messages
from rota.protocol.messages import DescribeGroup, DescribeReply

_WORDING: Final = Wording("permits", "the permit", "the wait for a permit", PermitLost)
_SHOWN = 3
"""Maximum number of holders in one line of the log."""
_log = logging.getLogger(__name__)


class PermitRole(Role[Leadership]):
    """A permit is held while joining: the coordinator revokes no member's permit. `share` is its last answer."""

    is_cooperative = True

    def __init__(self, permits: int) -> None:
        """Raise `ValueError` for a number that no group may have."""
        if type(permits) is not int or not 1 <= permits <= MAX_PERMITS:
            raise ValueError(f"permits must be a number from 1 to {MAX_PERMITS}, not {permits!r}")
        self.permits = permits
        self.share = PermitShare()

    def protocols(self, held: Leadership | None, generation_id: int) -> tuple[messages.Protocol, ...]:  # noqa: ARG002
        return (messages.Protocol(PROTOCOL_NAME, encode_wish(Wish(self.permits))),)

    def read(self, assigned: Assigned) -> Leadership:
        former, self.share = self.share, decode_share(assigned.assignment)
        if self.share.of not in (former.of, self.permits):
            _log.warning(
                "this group has %d permits, not %d: another member asks for fewer", self.share.of, self.permits
            )
        return _held(self.share)


def _held(share: PermitShare) -> Leadership:
    return () if share.permit is None else (f"permit {share.permit} with token {share.token}",)


class Permit(Term):
    """A granted permit; as an `async with` block, it cancels its body if the permit is lost, and raises `PermitLost`.

    The permit, its number and its token do not change when other members join or leave.
    """

    _wording: ClassVar[Wording] = _WORDING

    def __init__(self, member: Member[Leadership], share: PermitShare) -> None:
        super().__init__(member)
        assert share.permit is not None
        self._token = share.token
        self._share = share

    @property
    def number(self) -> int:
        """The number of the permit: 0 to N - 1. A fenced system stores the highest token for each number."""
        assert self._share.permit is not None
        return self._share.permit

    @property
    def fencing_token(self) -> int:
        """The fencing token: greater than all earlier ones of this permit, and the same until the permit is over."""
        return self._token

    @property
    def is_valid(self) -> bool:
        """Whether the permit is held now, by the clock, also right after a blocked event loop. Any thread may ask."""
        return not self.lost.is_set() and self._member.assignment == _held(self._share)


class PermitCandidacy(Election):
    """A member that has a permit or waits for one. Each granted permit is a term."""

    _wording: ClassVar[Wording] = _WORDING

    def __init__(
        self, context: ClientContext, settings: MembershipSettings, *, role: PermitRole, on_lost: Listener | None = None
    ) -> None:
        # The end of the block releases the permit, also if the member is static.
        super().__init__(context, settings, role=role, leave_on_close=True)
        self.role = role
        self._listener = on_lost

    async def granted(self) -> Permit:
        """Wait for a permit. Raise `PermitLost` if this is closed meanwhile."""
        async for permit in self.terms():
            return cast("Permit", permit)
        raise PermitLost(f"{self._wording.candidacy} is over")

    async def _describe_wait(self) -> str:
        member, share = self.member, self.role.share
        with suppress(CoordinatorError):
            described = await member._caller.ask(DescribeGroup(member.namespace, member.group_id), DescribeReply)
            held = [each.member_id for each in described.members if decode_share(each.assignment).permit is not None]
            return (
                f"{max(share.place - 1, 0)} are before this one, and {share.of} are held by {', '.join(held[:_SHOWN])}"
            )
        return self.trouble or "the group cannot be described"

    def _new_term(self) -> Permit:
        return Permit(self.member, self.role.share)

    async def _on_lost(self, removed: Leadership) -> None:
        permit = self._term
        is_news = permit is not None and not permit.lost.is_set()
        # The body is cancelled first, because the program's function may be slow.
        self._end(self._wording.lost)
        try:
            if is_news:
                await notify(self._listener, permit, deadline=None)
        finally:
            await super()._on_lost(removed)


class Permits(RunningOver):
    """A permit for an `async with` block, or from `start` to `close`; entering waits until it is granted.

        async with client.permits("downloads", 3) as permit:
            await download(permit.number, permit.fencing_token)   # cancelled when the permit is lost

    `client.lock(name)` is the same with one permit. If the permit is lost, the block raises `PermitLost`; its end
    releases the permit to the member that has waited longest. `run` acquires permits repeatedly.
    """

    def __init__(self, candidacy: PermitCandidacy, *, wait_timeout: float | None = None) -> None:
        super().__init__(candidacy)
        self._candidacy = candidacy
        self._stops = candidacy._stops
        self._wait_timeout = wait_timeout
        self._stack = AsyncExitStack()
        self._permit: Permit | None = None
        self._is_entered = False

    async def __aenter__(self) -> Permit:  # type: ignore[override]  # The block is about its permit.
        """Wait for a permit; raise `TimeoutError` after `wait_timeout`."""
        self._check_new()
        self._is_entered = True
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._candidacy)
            self._permit = await self._granted()
            await stack.enter_async_context(self._permit)
            self._stack = stack.pop_all()
        return self._permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def _granted(self) -> Permit:
        try:
            async with asyncio.timeout(self._wait_timeout):
                return await self._candidacy.granted()
        except TimeoutError as error:
            reason = (
                self._candidacy.member.trouble or f"{self.of} are held, {self.place - 1} members are before this one"
            )
            raise TimeoutError(
                f"no permit of {self._candidacy.member.group_id!r} in {self._wait_timeout} s: {reason}"
            ) from error

    # --- the permit ---------------------------------------------------------------------------

    @property
    def permit(self) -> Permit:
        """The permit that this holds, or held; raises RuntimeError before a permit is granted."""
        if self._permit is None:
            raise RuntimeError("no permit was granted yet: enter the block (`async with`) or await start() first")
        return self._permit

    @property
    def of(self) -> int:
        """The number of permits of the group: the lowest that a member asks for. 0 before the first answer."""
        return self._candidacy.role.share.of

    @property
    def place(self) -> int:
        """The position in the queue: 1 gets the next permit; 0 with a permit."""
        return self._candidacy.role.share.place

    # --- work -----------------------------------------------------------------------------------

    async def run(
        self,
        work: Callable[[Permit], Awaitable[Outcome]],
        *,
        drain_timeout: float = STOP_DRAIN_S,
        handle_signals: bool = True,
        retry: bool = False,
    ) -> Outcome | None:
        """Wait for a permit and call `work(permit)` with each permit, until it returns or raises. Use this instead of
        the block. Arguments, signals and errors are those of `Election.run`, with `PermitLost`; `wait_timeout` does not
        count.
        """
        if self._is_entered:
            raise RuntimeError("run() takes the place of the block: call it on permits that were not entered")
        body = cast("Callable[[Term], Awaitable[Outcome]]", work)
        return await self._candidacy.run(body, drain_timeout=drain_timeout, handle_signals=handle_signals, retry=retry)

    # --- closing --------------------------------------------------------------------------------

    async def close(self, timeout: float = STOP_DRAIN_S) -> None:
        """Release the permit, or stop waiting for one. A body that calls this continues without the permit; one of
        another task is cancelled.
        """
        if self._permit is not None:
            self._permit._finish_body()
        await super().close(timeout)
