"""Authenticates callers by certificate, API token, JWT or review, whichever is shown first; cached once verified."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from rota.access.claims import Issuer
from rota.access.rules import Caller
from rota.access.sources import source_of
from rota.access.tokens import MalformedToken, Presented, TokenRecord, is_ours, parse, refusal_of
from rota.api.access.identity import NO_CREDENTIALS, ORIGIN, Credentials, Identity, Policy, unauthenticated
from rota.observability.refusals import log_refusal
from rota.protocol.errors import ErrorCode

MAX_CREDENTIAL_BYTES = 16 * 1024
REMEMBERED = 20_000
"""Credentials of so many callers are kept."""
GOOD_FOR_S = 60.0
"""A verified JWT or review is verified again after so long, on streams too. API tokens are looked at with each call."""
BAD_FOR_S = 1.0

_BEARER = b"bearer "

_log = logging.getLogger(__name__)


class Refused(Exception):
    """The credentials prove nothing; the message says why, and quotes nothing of them."""


class Unanswered(Refused):
    """It is not known whether they do: the authority does not answer."""


class Overloaded(Unanswered):
    """No issuer is asked now: the caller should come again a little later."""


class Tokens(Protocol):
    """Where API tokens are."""

    def record(self, token_id: str) -> TokenRecord | None: ...

    async def look_again(self, token_id: str) -> None: ...

    def used(self, token_id: str, at_ms: int) -> None:
        """A call with this token has arrived."""


class Bearers(Protocol):
    """Issuers' tokens."""

    async def caller_of(self, token: str) -> Caller:
        """The caller that a JWT identifies; raises `Refused`, and `Unanswered` where the issuer does not answer."""

    async def close(self) -> None:
        """Close the connections to issuers."""


class ServerAuthenticator:
    """See `rota.api.access.identity.Authenticator`."""

    def __init__(self, policy: Policy, tokens: Sequence[Tokens], bearers: Bearers) -> None:
        self.policy = policy
        self._tokens = tuple(tokens)
        self._bearers = bearers
        self._unauthenticated = unauthenticated(policy)
        self._known = _Identities()
        self._refused = _Identities()
        """Apart from those, so that invented credentials push no others out."""
        self._looking: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop looking at what streams show."""
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)
        await self._bearers.close()

    def known(self, credentials: Credentials) -> Identity | None:
        if credentials is NO_CREDENTIALS:
            return self._unauthenticated
        key, issuers = _key(credentials), self.policy.document.issuers
        return self._known.find(key, issuers) or self._refused.find(key, issuers)

    async def identify(self, credentials: Credentials) -> Identity:
        issuers = self.policy.document.issuers
        try:
            identity = await self._verify(credentials)
        except Refused as refused:
            return self._refuse(credentials, refused, issuers)
        self._refused.forget(_key(credentials))
        self._known.keep(_key(credentials), issuers, identity, GOOD_FOR_S)
        return identity

    def _refuse(self, credentials: Credentials, refused: Refused, issuers: tuple[Issuer, ...]) -> Identity:
        log_refusal(_log, "credentials were refused", source_of(ORIGIN.get()), detail=str(refused))
        if isinstance(refused, Overloaded):
            return unauthenticated(self.policy, str(refused), ErrorCode.THROTTLED)
        identity = unauthenticated(self.policy, str(refused))
        self._known.forget(_key(credentials))
        self._refused.keep(_key(credentials), issuers, identity, BAD_FOR_S)
        return identity

    async def _verify(self, credentials: Credentials) -> Identity:
        """A header wins over a certificate: a client sends a token on purpose."""
        if credentials.authorization:
            return await self._verify_bearer(_bearer(credentials.authorization))
        if credentials.certificate is not None:
            return Identity(credentials.certificate, self.policy)
        return self._unauthenticated

    async def _verify_bearer(self, token: str) -> Identity:
        if is_ours(token):
            return await self._verify_token(token)
        if token.count(".") != 2:
            raise Refused("neither an API token nor a JWT")
        caller = await self._bearers.caller_of(token)
        again = _Again(caller, self.policy, lambda: self._bearers.caller_of(token), self._looking)
        return Identity(caller, self.policy, still_refused=again.refusal)

    async def _verify_token(self, token: str) -> Identity:
        try:
            presented = parse(token)
        except MalformedToken as malformed:
            raise Refused(str(malformed)) from None
        for tokens in self._tokens:
            if tokens.record(presented.token_id) is None:
                await tokens.look_again(presented.token_id)
        record, refusal = self._look_up(presented)
        if record is None or refusal:
            raise Refused(refusal)
        caller = Caller(record.subject, "token", grants=record.grants, expires_at_ms=record.expires_at_ms)
        return Identity(caller, self.policy, still_refused=lambda: self._look_up(presented)[1])

    def _look_up(self, presented: Presented) -> tuple[TokenRecord | None, str]:
        """The token's record and why it is not accepted. Asked for as long as the token is used, if not each time."""
        now_ms = int(time.time() * 1000)
        for tokens in self._tokens:
            record = tokens.record(presented.token_id)
            if record is not None:
                refusal = refusal_of(record, presented, now_ms)
                if not refusal:
                    tokens.used(presented.token_id, now_ms)
                return record, refusal
        return None, refusal_of(None, presented, now_ms)


class _Again:
    """Verifies a JWT again that outlives its cached verification, such as on a long-lived stream.

    It is verified again in the background, at once where the access file has other issuers, and the next use gets the
    result. While no issuer answers, it stays as it was.
    """

    def __init__(
        self,
        caller: Caller,
        policy: Policy,
        verify: Callable[[], Awaitable[Caller]],
        looking: set[asyncio.Task[None]],
    ) -> None:
        self._caller = caller
        self._policy = policy
        self._issuers = policy.document.issuers
        self._verify = verify
        self._looking = looking
        self._look_at = time.monotonic() + GOOD_FOR_S
        self._refusal = ""

    def refusal(self) -> str:
        """Why the token is not accepted any more; empty while it is."""
        now, issuers = time.monotonic(), self._policy.document.issuers
        if (now >= self._look_at or issuers != self._issuers) and not self._refusal:
            self._look_at, self._issuers = now + GOOD_FOR_S, issuers
            task = asyncio.create_task(self._look())
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
        return self._refusal

    async def _look(self) -> None:
        try:
            if await self._verify() != self._caller:
                self._refusal = "the token names another caller by now"
        except Unanswered:
            return
        except Refused as refused:
            self._refusal = str(refused)


class _Identities:
    """Identities by their credentials, each for a time, and as long as the issuers stay the same."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes | Caller | None, tuple[float, tuple[Issuer, ...], Identity]] = OrderedDict()

    def find(self, key: bytes | Caller | None, issuers: tuple[Issuer, ...]) -> Identity | None:
        found = self._kept.get(key)
        if found is None or time.monotonic() >= found[0] or found[1] != issuers:
            return None
        return found[2]

    def keep(
        self, key: bytes | Caller | None, issuers: tuple[Issuer, ...], identity: Identity, good_for_s: float
    ) -> None:
        self._kept[key] = (time.monotonic() + good_for_s, issuers, identity)
        while len(self._kept) > REMEMBERED:
            self._kept.popitem(last=False)

    def forget(self, key: bytes | Caller | None) -> None:
        self._kept.pop(key, None)


def _key(credentials: Credentials) -> bytes | Caller | None:
    """Not the secret itself, which should not be kept for long.

    Of a certificate the caller with its expiry: the same caller's next certificate is good for longer.
    """
    if credentials.authorization:
        return hashlib.sha256(credentials.authorization).digest()
    return credentials.certificate


def _bearer(authorization: bytes) -> str:
    if len(authorization) > MAX_CREDENTIAL_BYTES:
        raise Refused("the Authorization header is too long")
    if authorization[: len(_BEARER)].lower() != _BEARER:
        raise Refused("the Authorization header must be: Bearer TOKEN")
    try:
        return authorization[len(_BEARER) :].strip().decode("ascii")
    except UnicodeDecodeError:
        raise Refused("a token is ASCII") from None
