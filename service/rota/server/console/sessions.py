"""The console's sessions: opened with a token, identified by a cookie, ended by signing out, by time, or with the
token.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import OrderedDict

from rota.core.access.quotas import Turns
from rota.core.access.sessions import (
    SECRET_BYTES,
    SessionRecord,
    cookie_of,
    digest_of,
    new_session,
    secret_for,
    secret_of,
    token_of,
)
from rota.core.replica.ports import StoreUnavailable
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.server.access.guard import Guard
from rota.server.access.identity import CURRENT, Credentials, Identity
from rota.server.console.backend import ConsoleStore

LOOK_EVERY_S = 1.0
"""Maximum delay until a session that ended at another replica ends at this one."""
REMEMBERED = 10_000
SIGN_INS_PER_S = 10
"""Sign-ins per second at this process, shared equally between callers: each writes to the store, as a commit does."""
UNKNOWN_PER_S = 50
"""Maximum number of unknown cookies per second that are looked up in the store."""

_log = logging.getLogger(__name__)


class Session:
    """A session in this process's memory."""

    def __init__(self, record: SessionRecord) -> None:
        self.record = record
        self.ended = False
        self.look_at = time.monotonic() + LOOK_EVERY_S

    def refusal(self) -> str:
        """Why the session is no longer valid; empty while it is valid."""
        over = self.ended or time.time() * 1000 >= self.record.expires_at_ms
        return "the session has ended; sign in again" if over else ""


class Sessions:
    """The console's sessions. All replicas share those in the store, so each request may reach another replica."""

    def __init__(self, store: ConsoleStore, guard: Guard) -> None:
        self._store = store
        self._guard = guard
        self._known: OrderedDict[str, Session] = OrderedDict()
        self._looking: set[asyncio.Task[None]] = set()
        self._second = 0
        self._looked_up = 0
        self._sign_ins = Turns(SIGN_INS_PER_S, int(time.monotonic() * 1000))

    async def open(self, token: str) -> str:
        """Create a session of the caller and return its cookie; raise `RejectedRequest` for too many, or
        `StoreUnavailable`.
        """
        caller = self._guard.current().caller.subject
        if not self._sign_ins.take(caller, 1, int(time.monotonic() * 1000)):
            raise RejectedRequest(ErrorCode.THROTTLED, "too many browsers sign in at once; try again in a second")
        secret = secret_for(caller, os.urandom(SECRET_BYTES))
        now_ms = int(time.time() * 1000)
        record = new_session(secret, token, now_ms)
        await self._store.add_session(record, now_ms)
        self._remember(Session(record))
        return cookie_of(secret)

    async def enter(self, cookie: str) -> None:
        """Authenticate the call with the session's token; a cookie without a session has no effect."""
        secret = secret_of(cookie)
        session = None if secret is None else await self._find(digest_of(secret))
        if secret is None or session is None or session.refusal():
            return
        token = token_of(secret, session.record)
        if token is None:
            return
        identity = await self._guard.enter(bearer(token))
        CURRENT.set(self._bound(identity, session))

    async def close(self, cookie: str) -> None:
        """End the session at all replicas; raises `StoreUnavailable`."""
        secret = secret_of(cookie)
        if secret is None:
            return
        session = await self._find(digest_of(secret))
        if session is not None and not session.ended:
            await self._store.end_session(session.record.digest)
            session.ended = True

    def _bound(self, identity: Identity, session: Session) -> Identity:
        """Return the token's identity, bounded by the session, also on an open stream."""

        def refusal() -> str:
            if time.monotonic() >= session.look_at:
                self._look_later(session)
            return session.refusal() or identity.proof_refused()

        return Identity(identity.caller, self._guard.authenticator.policy, still_refused=refusal)

    async def _find(self, digest: str) -> Session | None:
        session = self._known.get(digest)
        if session is None:
            self._count_unknown()
            record = await self._store.read_session(digest)
            if record is None:
                return None
            session = Session(record)
            self._remember(session)
        elif time.monotonic() >= session.look_at:
            await self._look(session)
        return session

    async def _look(self, session: Session) -> None:
        """Read the session again. While the store does not answer, it stays unchanged."""
        session.look_at = time.monotonic() + LOOK_EVERY_S
        try:
            found = await self._store.read_session(session.record.digest)
        except StoreUnavailable as error:
            _log.warning("a session of the console cannot be read and stays valid: %s", error)
            return
        if found is None:
            session.ended = True

    def _look_later(self, session: Session) -> None:
        session.look_at = time.monotonic() + LOOK_EVERY_S
        task = asyncio.get_running_loop().create_task(self._look(session))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def _remember(self, session: Session) -> None:
        self._known[session.record.digest] = session
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _count_unknown(self) -> None:
        """Limit lookups: invented cookies must not load the store."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._looked_up = second, 0
        self._looked_up += 1
        if self._looked_up > UNKNOWN_PER_S:
            raise RejectedRequest(ErrorCode.THROTTLED, "too many requests with unknown sessions")


def bearer(token: str) -> Credentials:
    return Credentials(b"Bearer " + token.encode("ascii", "replace"))
