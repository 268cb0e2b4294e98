"""Electing a single writer: candidates campaign in a group, its leader has a term, and the term ends its own work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeAlias, TypeVar

from rota.client.callbacks import Listeners
from rota.client.errors import LeadershipLost
from rota.client.member import Member
from rota.client.pulse import Pulse
from rota.client.transports.port import Transport
from rota.membership import Assigned, JoinedAsLeader, MembershipSettings
from rota.protocol import messages
from rota.protocol.messages import FenceReply, OffsetToCommit
from rota.types.leader import PROTOCOL_NAMES

Outcome = TypeVar("Outcome")
Leadership: TypeAlias = tuple[str, ...]
"""A share of the one thing that there is to hold, or of nothing."""

_LEADS: Final[Leadership] = ("leader",)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CandidateRole:
    """Leadership is held while joining: a coordinator keeps the leader of a group for as long as it rejoins."""

    metadata: bytes = b""

    @property
    def is_cooperative(self) -> bool:
        return True

    def protocols(self, held: Leadership | None, generation_id: int) -> tuple[messages.Protocol, ...]:  # noqa: ARG002
        return (messages.Protocol(PROTOCOL_NAMES[0], self.metadata),)

    def assign(self, generation: JoinedAsLeader) -> dict[str, bytes]:  # noqa: ARG002
        """Who leads is in everybody's answer already."""
        return {}

    def read(self, assigned: Assigned) -> Leadership:
        return _LEADS if assigned.is_leader else ()

    def without(self, share: Leadership, other: Leadership) -> Leadership:
        return () if other else share

    def concerned(self, held: Leadership | None, offsets: Sequence[OffsetToCommit]) -> Leadership:  # noqa: ARG002
        return held or ()

    def unwanted(self, held: Leadership) -> Leadership:  # noqa: ARG002
        return ()


class Term:
    """One time of leading. As an `async with` block it cancels its body when it is over, and raises `LeadershipLost`.

    A term goes on while other candidates come and go; `token` then grows with the generation, and never goes back.
    """

    def __init__(self, member: Member[Leadership]) -> None:
        self._member = member
        self._token = member.generation_id
        self.lost: asyncio.Event = asyncio.Event()
        """Set once this term is over, for whatever reason: wait for it, or look at `is_valid`."""
        self.reason: str = ""
        """Why it is over."""
        self._body: asyncio.Task[object] | None = None
        self._cancellations = 0
        self._was_cancelled = False
        self._left = asyncio.Event()
        self._left.set()

    @property
    def token(self) -> int:
        """The fencing token: give it to whatever you write to, and have older ones refused there."""
        if not self.lost.is_set():
            self._token = max(self._token, self._member.generation_id)
        return self._token

    @property
    def valid_until(self) -> float | None:
        """When this term ends unless it is renewed, in seconds of the event loop's clock; None once it is over.

        Always earlier than the moment from which the coordinator may let somebody else lead.
        """
        return None if self.lost.is_set() else self._member.valid_until

    @property
    def is_valid(self) -> bool:
        """Whether this candidate leads now, by the clock: right also after the event loop was blocked."""
        return not self.lost.is_set() and bool(self._member.assignment)

    def raise_if_lost(self) -> None:
        """Raise `LeadershipLost` unless the term is valid now. To be called before what must not be done twice."""
        if not self.is_valid:
            self._member.check_deadline()
            raise LeadershipLost(self.reason or "the local deadline has passed")

    async def verify(self) -> FenceReply:
        """Ask the coordinator whether this term's generation is the current one; `LeadershipLost` if not."""
        self.raise_if_lost()
        return await self._member.verify_fence()

    async def signed_token(self) -> str:
        """A signed proof of this term's generation, for services that check it offline; `LeadershipLost` if it is over.

        Good for a minute or so: ask again when it has run out.
        """
        self.raise_if_lost()
        return await self._member.signed_token()

    def begin(self) -> None:
        """Work of this term begins: whoever hands the leadership over in order waits for `finish`."""
        self.raise_if_lost()
        self._left.clear()

    def finish(self) -> None:
        """Work of this term is over."""
        self._left.set()

    async def __aenter__(self) -> Self:
        self.begin()
        self._body = asyncio.current_task()
        assert self._body is not None
        self._cancellations = self._body.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        self.finish()
        if not self._was_cancelled or body is None:
            return
        self._was_cancelled = False
        if body.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
            raise LeadershipLost(self.reason) from error

    def end(self, reason: str) -> None:
        """It is over: the body is cancelled."""
        if self.lost.is_set():
            return
        self._token = self.token
        self.reason = reason
        self.lost.set()
        if self._body is not None and self._body is not asyncio.current_task():
            self._was_cancelled = True
            self._body.cancel()

    async def wait_left(self) -> None:
        """Return when the body has come to its end."""
        await self._left.wait()


class Election:
    """A candidacy, for the time of an `async with` block.

        async with client.leader("billing-writer") as election:
            await election.run(write)          # calls write(term) in each term; cancelled when the term is lost

    `terms` is the same by hand. Leaving the block ends the term in order: its body first, then the leadership, so that
    another candidate leads at once.
    """

    def __init__(
        self,
        transport: Transport,
        settings: MembershipSettings,
        *,
        role: CandidateRole,
        leave_on_close: bool | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        listeners: Listeners[Leadership] = Listeners(self._on_assigned, self._on_revoked, self._on_lost)
        self.member: Member[Leadership] = Member(
            transport, settings, role=role, listeners=listeners, leave_on_close=leave_on_close, pulse=pulse
        )
        """The candidate's membership, for what is not about leading."""
        self._term: Term | None = None
        self._elected = asyncio.Event()
        self._is_over = False
        self._has_own_token = settings.group_instance_id is None

    async def __aenter__(self) -> Self:
        await self.member.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.member.__aexit__(kind, error, trace)
        finally:
            self._end("the candidacy is over")
            self._is_over = True
            self._elected.set()

    # --- where it stands ----------------------------------------------------------------------

    @property
    def term(self) -> Term | None:
        """The term under way; None while this candidate does not lead."""
        return self._term if self._term is not None and self._term.is_valid else None

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads now, by the clock."""
        return self.term is not None

    @property
    def valid_until(self) -> float | None:
        """Until when what is known here holds: this candidate's term, or that another leads."""
        return self.member.valid_until

    @property
    def unreachable_since(self) -> float | None:
        """See `Member.unreachable_since`."""
        return self.member.unreachable_since

    # --- leading ------------------------------------------------------------------------------

    async def terms(self) -> AsyncIterator[Term]:
        """Each term as it begins. The next one comes when the one before is over."""
        while True:
            await self._elected.wait()
            if self._is_over or self._term is None:
                return
            term = self._term
            self.member.check_deadline()
            if term.is_valid:
                yield term
            await term.lost.wait()

    async def run(self, work: Callable[[Term], Awaitable[Outcome]]) -> Outcome:
        """Wait to be elected and call `work(term)`; anew in each term, until it returns or raises."""
        async for term in self.terms():
            try:
                async with term:
                    return await work(term)
            except LeadershipLost as lost:
                _log.warning("election %s: %s", self.member.group_id, lost)
        raise LeadershipLost("the candidacy is over")

    async def resign(self, reason: str = "resigned", *, pause_s: float = 0.0) -> None:
        """End the term in order and let another candidate lead; campaign again after `pause_s`, as the last in line."""
        await self.member.step_aside(reason)
        await asyncio.sleep(pause_s)
        self.member.come_back()

    # --- what happens -------------------------------------------------------------------------

    def _on_assigned(self, _added: Leadership, held: Leadership) -> None:
        if not held:
            return
        if not self._has_own_token:
            # A static candidate that took the place of its former self was given that one's generation. What both
            # may write must be told apart, so it asks for a token of its own first.
            self._has_own_token = True
            self.member.rejoin("a token of its own")
        elif self._term is None or self._term.lost.is_set():
            self._term = Term(self.member)
            self._elected.set()

    async def _on_revoked(self, _removed: Leadership) -> None:
        term = self._end("the leadership was handed over")
        if term is not None:
            await term.wait_left()

    def _on_lost(self, _removed: Leadership) -> None:
        self._end("the leadership was lost")

    def _end(self, reason: str) -> Term | None:
        if self._term is not None:
            self._elected.clear()
            self._term.end(reason)
        return self._term
