"""One term as a leader, or as a holder of a permit: its token, its deadline, and the work that ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeAlias

from rota.client.errors import LeadershipLost, MembershipLost, chain_of, without_losses
from rota.client.tasks import FinalSignal
from rota.protocol.messages import FenceReply

if TYPE_CHECKING:
    from rota.client.member import Member

Leadership: TypeAlias = tuple[str, ...]
"""The share of a leader; empty for other candidates."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The names of the grant and of its group in logs, reasons and errors."""

    subject: str
    held: str
    candidacy: str
    error: type[MembershipLost]

    @property
    def lost(self) -> str:
        return f"{self.held} was lost"


ELECTION: Final = Wording("election", "the leadership", "the candidacy", LeadershipLost)


@dataclass(slots=True, eq=False)
class _Body:
    """A task's block in a term."""

    task: asyncio.Task[object]
    cancellations: int
    """The number of cancellations of the task before the block."""
    was_cancelled: bool = False


class Term:
    """A term as leader. As an `async with` block it cancels its body when it is over, and raises `LeadershipLost`.

    Several tasks may be in its block at once: all are cancelled. A term continues while other candidates join and
    leave; `fencing_token` then grows, and never decreases.
    """

    _wording: ClassVar[Wording] = ELECTION

    def __init__(self, member: Member[Leadership]) -> None:
        self._member = member
        self._token = member.fencing_token
        self.lost: FinalSignal = FinalSignal()
        """Set once this term is over, for any reason: wait for it, or check `is_valid`."""
        self._stopping = FinalSignal()
        self._is_watched = False
        """Whether its work has read `stopping`: other work is not drained."""
        self._cancelled_at: float | None = None
        self.reason: str = ""
        """Why the term is over."""
        self._raised: MembershipLost | None = None
        self._bodies: list[_Body] = []
        self._works = 0
        self._left: asyncio.Event = asyncio.Event()
        """Set while no work of this term runs."""
        self._left.set()

    @property
    def fencing_token(self) -> int:
        """The fencing token: send it to the resources to which you write, and let them reject older ones."""
        # Before this term ends, the member may already be in the next generation, which another candidate leads.
        if not self.lost.is_set() and self._member.is_leader:
            self._token = max(self._token, self._member.fencing_token)
        return self._token

    @property
    def stopping(self) -> FinalSignal:
        """Set when the work should end, while the term may still be valid; never later than `lost`. Work that has read
        it is drained, other work is cancelled at once.
        """
        self._is_watched = True
        return self._stopping

    @property
    def valid_until(self) -> float | None:
        """The end of this term unless it is renewed, in seconds of the event loop's clock; None once it is over.

        Always earlier than the time from which the coordinator may let another member lead.
        """
        return None if self.lost.is_set() else self._member.valid_until

    @property
    def is_valid(self) -> bool:
        """Whether this candidate leads now, by the clock, also right after a blocked event loop. Any thread may ask."""
        return not self.lost.is_set() and (bool(self._member.assignment) or self._is_handed_over())

    def _is_handed_over(self) -> bool:
        """Whether the term continues until its work ends: no other candidate leads before that."""
        return self._member._role.hands_over and self._member._driver.holds()

    def raise_if_lost(self) -> None:
        """Raise `LeadershipLost` unless the term is valid now. Call it before an action that must not be done twice.
        Any thread may call it.
        """
        if not self.is_valid:
            self._member._driver.check()
            raise self._loss(self.reason or "the local deadline has passed")

    async def verify(self) -> FenceReply:
        """Ask the coordinator whether this term's generation is the current one; raise `LeadershipLost` if not."""
        self.raise_if_lost()
        with self._losses_of_term():
            return await self._member.verify_fence()

    async def signed_token(self) -> str:
        """Return a signed proof of this term's generation, for services that check it offline; raise `LeadershipLost`
        if it is over.

        It is valid for about a minute: request another when it has expired.
        """
        self.raise_if_lost()
        with self._losses_of_term():
            return await self._member.signed_token()

    def _is_end_of(self, error: BaseException) -> bool:
        """Return whether the term was over when its work raised, or the work raised its loss before the
        member noticed.
        """
        return not self.is_valid or any(each is self._raised for each in chain_of(error))

    def _loss(self, reason: str) -> MembershipLost:
        self._raised = self._wording.error(reason)
        return self._raised

    @contextmanager
    def _losses_of_term(self) -> Iterator[None]:
        """Raise `LeadershipLost` if the coordinator says that the membership is over."""
        try:
            yield
        except MembershipLost as error:
            raise self._loss(str(error)) from error

    def _begin(self) -> None:
        """Start work of this term: an orderly handover of the leadership waits for `_finish`."""
        self.raise_if_lost()
        self._works += 1
        self._left.clear()

    def _finish(self) -> None:
        """End work of this term."""
        self._works = max(0, self._works - 1)
        if not self._works:
            self._left.set()

    async def __aenter__(self) -> Self:
        self._begin()
        task = asyncio.current_task()
        assert task is not None
        self._bodies.append(_Body(task, task.cancelling()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body = self._finish_body()
        was_cancelled = body is not None and body.was_cancelled and body.task.uncancel() <= body.cancellations
        if was_cancelled and kind is asyncio.CancelledError:
            raise self._wording.error(self.reason) from error
        self._check(error)

    def _check(self, error: BaseException | None) -> None:
        """Raise this term's loss instead of an error of its block that the loss explains, or raise the unexplained
        rest.
        """
        if error is None or isinstance(error, self._wording.error) or not self._is_end_of(error):
            return
        rest = without_losses(error)
        if rest is None:
            raise self._loss(self.reason or str(error)) from error
        if rest is not error:
            raise rest from None

    def _finish_body(self) -> _Body | None:
        """End the work of this task's innermost block; return None if it has already ended."""
        task = asyncio.current_task()
        mine = (body for body in reversed(self._bodies) if body.task is task or body.task.done())
        body = next(mine, None)
        if body is not None:
            self._bodies.remove(body)
            self._finish()
        return body

    def _end(self, reason: str) -> None:
        """End the term: cancel the tasks in its block."""
        if self.lost.is_set():
            return
        self._token = self.fencing_token
        self.reason = reason
        self._stopping.set()
        self.lost.set()
        self._cancelled_at = asyncio.get_running_loop().time()
        outermost: dict[asyncio.Task[object], _Body] = {}
        for body in self._bodies:
            outermost.setdefault(body.task, body)
        for task, body in outermost.items():
            if task is not asyncio.current_task():
                body.was_cancelled = True
                task.cancel()
