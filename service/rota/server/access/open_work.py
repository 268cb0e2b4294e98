"""Work that is open for longer than a moment, and its end where a new call of the same caller would be rejected.

Credentials are revoked and expire, rules change, and sessions of the console end, while calls are parked and streams
are open. Once a second each of them is checked by the guard, as a new call would be. What fails is ended with the
rejection that a new call gets. The members stay: they expire unless another call keeps them alive (ADR 49).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from typing import TypeVar

from rota.core.replica.forwarding import Submitted
from rota.core.replica.ports import Answer, Cancel
from rota.protocol.calls import refuse
from rota.protocol.errors import RejectedRequest
from rota.server.access.identity import Identity
from rota.server.ports import ServedCoordinator

SWEEP_EVERY_S = 1.0
_LOOK_S = 0.1
"""What an issuer or the store may need to answer, before the pieces are checked."""
_AT_ONCE = 200
"""Checked without a break, so that the event loop is not held up."""

_log = logging.getLogger(__name__)

Check = Callable[[], None]
"""Raises `RejectedRequest` where a new call would be rejected."""
End = Callable[[RejectedRequest], None]
Result = TypeVar("Result")


class OpenWork:
    """All open work of a server. Each piece is checked in the context in which it began, which names its caller."""

    def __init__(self) -> None:
        self._pieces: dict[object, tuple[Identity, Check, End]] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    @contextmanager
    def hold(self, identity: Identity, check: Check, end: End) -> Iterator[None]:
        """Check this piece for as long as it is open. `end` is called at most once."""
        piece, context = object(), copy_context()
        self._pieces[piece] = identity, lambda: context.run(check), end
        try:
            yield
        finally:
            self._pieces.pop(piece, None)

    async def keep_sweeping(self) -> None:
        """Run for as long as the server does."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            await self.sweep()

    async def sweep(self) -> None:
        """Check each piece once, and end those that fail."""
        identities = {identity for identity, _, _ in self._pieces.values()}
        for identity in identities:
            _unless_broken(identity.proof_refused)
        await asyncio.sleep(_LOOK_S)
        for identity in identities:
            identity.look_again()
        for number, (piece, (_, check, end)) in enumerate(tuple(self._pieces.items())):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if piece not in self._pieces:
                continue
            try:
                _unless_broken(check)
            except RejectedRequest as rejected:
                del self._pieces[piece]
                end(rejected)


def _unless_broken(check: Callable[[], object]) -> None:
    """A bug of ours in one check must not end the sweeps for all other callers."""
    try:
        check()
    except RejectedRequest:
        raise
    except Exception:
        _log.exception("an open call or stream could not be checked; it goes on")


class Ending:
    """Interrupts what a piece of work awaits when the piece is ended. For one task at a time."""

    def __init__(self) -> None:
        self.rejection: RejectedRequest | None = None
        self._timeout: asyncio.Timeout | None = None

    def end(self, rejection: RejectedRequest) -> None:
        self.rejection = rejection
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def wait_for(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Await the work; cancel it and raise the rejection where the piece is ended before it is done."""
        try:
            if self.rejection is None:
                async with asyncio.timeout(None) as self._timeout:
                    return await work()
        except TimeoutError:
            if self.rejection is None:
                raise
        finally:
            self._timeout = None
        raise self.rejection


class ParkedCall:
    """A submitted call that may park, and what it holds until it is answered, ended or cancelled: one of the three.

    It needs no task, as work with an `Ending` does.
    """

    __slots__ = ("_cancel", "_done", "_request", "held")

    def __init__(self, request: Submitted, done: Callable[[Answer], None]) -> None:
        self.held = ExitStack()
        self._request = request
        self._done: Callable[[Answer], None] | None = done
        """None from its end on."""
        self._cancel: Cancel | None = None

    def submit(self, coordinator: ServedCoordinator) -> Cancel:
        try:
            self._cancel = coordinator.submit(self._request, self._answered)
        except BaseException:
            self._close()
            raise
        return self.cancel

    def end(self, rejection: RejectedRequest) -> None:
        """Neither the caller's proof nor the rules need last as long as a call is parked."""
        cancel, done = self._cancel, self._close()
        if done is not None:
            unpark(cancel)
            done(Answer(refuse(self._request, rejection.code, rejection.detail)))

    def cancel(self) -> None:
        """Its client is gone."""
        cancel, done = self._cancel, self._close()
        if done is not None:
            unpark(cancel)

    def _answered(self, answer: Answer) -> None:
        done = self._close()
        if done is not None:
            done(answer)

    def _close(self) -> Callable[[Answer], None] | None:
        done, self._done, self._cancel = self._done, None, None
        if done is not None:
            self.held.close()
        return done


def unpark(call: Cancel | None) -> None:
    """Cancel a call if there is anything to cancel."""
    if call is not None:
        call()
