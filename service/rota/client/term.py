"""One time of leading, or of holding a permit: its token, its deadline, and the work that ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeAlias

from rota.client.errors import LeadershipLost, MembershipLost
from rota.client.final_signal import FinalSignal
from rota.client.losses import chain_of, without_losses
from rota.protocol.messages import FenceReply

if TYPE_CHECKING:
    from rota.client.member import Member

Leadership: TypeAlias = tuple[str, ...]
"""A share of the one thing that there is to hold, or of nothing."""


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
    """A block of a term that a task is in."""

    task: asyncio.Task[object]
    cancellations: int
    """How often the task had been asked to end before the block."""
    was_cancelled: bool = False


class Term:
    """One time of leading. As an `async with` block it cancels its body when it is over, and raises `LeadershipLost`.

    Several tasks may be in its block at once: all are cancelled. A term continues while other candidates join and
    leave; `fencing_token` then grows, and never goes back.
    """

    _wording: ClassVar[Wording] = ELECTION

    def __init__(self, member: Member[Leadership]) -> None:
        self._member = member
        self._token = member.fencing_token
        self.lost: FinalSignal = FinalSignal()
        """Set once this term is over, for whatever reason: wait for it, or look at `is_valid`."""
        self._stopping = FinalSignal()
        self._is_watched = False
        """Whether its work has looked at `stopping`: other work is not drained."""
        self._cancelled_at: float | None = None
        self.reason: str = ""
        """Why it is over."""
        self._raised: MembershipLost | None = None
        self._bodies: list[_Body] = []
        self._works = 0
        self._left: asyncio.Event = asyncio.Event()
        """Set while no work of this term is under way."""
        self._left.set()

    @property
    def fencing_token(self) -> int:
        """The fencing token: give it to whatever you write to, and have older ones refused there."""
        # It may be in the next generation already, which another candidate leads, before this term ends.
        if not self.lost.is_set() and self._member.is_leader:
            self._token = max(self._token, self._member.fencing_token)
        return self._token

    @property
    def stopping(self) -> FinalSignal:
        """Set when the work should end, while the term may still be valid; never later than `lost`. Work that has
        looked at it is drained, other work is cancelled at once.
        """
        self._is_watched = True
        return self._stopping

    @property
    def valid_until(self) -> float | None:
        """When this term ends unless it is renewed, in seconds of the event loop's clock; None once it is over.

        Always earlier than the moment from which the coordinator may let another member lead.
        """
        return None if self.lost.is_set() else self._member.valid_until

    @property
    def is_valid(self) -> bool:
        """Whether this candidate leads now, by the clock: right also after the event loop was blocked. Any thread may
        ask.
        """
        return not self.lost.is_set() and (bool(self._member.assignment) or self._is_handed_over())

    def _is_handed_over(self) -> bool:
        """Whether the term goes on for as long as its work takes to end: no other candidate leads before that."""
        return self._member._role.hands_over and self._member._driver.holds()

    def raise_if_lost(self) -> None:
        """Raise `LeadershipLost` unless the term is valid now. To be called before what must not be done twice. Any
        thread may call it.
        """
        if not self.is_valid:
            self._member._driver.check()
            raise self._loss(self.reason or "the local deadline has passed")

    async def verify(self) -> FenceReply:
        """Ask the coordinator whether this term's generation is the current one; `LeadershipLost` if not."""
        self.raise_if_lost()
        with self._its_losses():
            return await self._member.verify_fence()

    async def signed_token(self) -> str:
        """A signed proof of this term's generation, for services that check it offline; `LeadershipLost` if it is over.

        Good for a minute or so: ask again when it has run out.
        """
        self.raise_if_lost()
        with self._its_losses():
            return await self._member.signed_token()

    def _is_end_of(self, error: BaseException) -> bool:
        """Whether the term was over when its work raised, or has raised that itself before the member notices."""
        return not self.is_valid or any(each is self._raised for each in chain_of(error))

    def _loss(self, reason: str) -> MembershipLost:
        self._raised = self._wording.error(reason)
        return self._raised

    @contextmanager
    def _its_losses(self) -> Iterator[None]:
        """Raise `LeadershipLost` where the coordinator says that the membership is over."""
        try:
            yield
        except MembershipLost as error:
            raise self._loss(str(error)) from error

    def _begin(self) -> None:
        """Work of this term begins: an orderly handover of the leadership waits for `_finish`."""
        self.raise_if_lost()
        self._works += 1
        self._left.clear()

    def _finish(self) -> None:
        """Work of this term that began is over."""
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
        """Raise this term's loss in place of an error of its block that the loss explains, or what is left of it."""
        if error is None or isinstance(error, self._wording.error) or not self._is_end_of(error):
            return
        rest = without_losses(error)
        if rest is None:
            raise self._loss(self.reason or str(error)) from error
        if rest is not error:
            raise rest from None

    def _finish_body(self) -> _Body | None:
        """The work of the innermost block of this task is over; None where its end came before."""
        task = asyncio.current_task()
        mine = (body for body in reversed(self._bodies) if body.task is task or body.task.done())
        body = next(mine, None)
        if body is not None:
            self._bodies.remove(body)
            self._finish()
        return body

    def _end(self, reason: str) -> None:
        """It is over: the tasks in its block are cancelled."""
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
