"""Authenticates callers by certificate, API token, JWT or review, whichever is shown first; cached once verified."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from rota.core.access.rules import Caller
from rota.core.access.sources import source_of
from rota.core.access.tokens import MalformedToken, is_ours, parse
from rota.protocol.errors import ErrorCode
from rota.server.access.identity import NO_CREDENTIALS, ORIGIN, Credentials, Identity, Policy, unauthenticated
from rota.server.access.tokens import Tokens
from rota.server.observability.logs import log_refusal

if TYPE_CHECKING:
    from rota.server.access.issuers import IssuedTokens

MAX_CREDENTIAL_BYTES = 16 * 1024
REMEMBERED = 20_000
"""Credentials of so many callers are kept."""
GOOD_FOR_S = 60.0
"""A verified JWT or review is verified again after so long, on streams too. API tokens are looked at with each call."""
BAD_FOR_S = 1.0

_BEARER = b"bearer "
_Kept = OrderedDict[bytes | Caller | None, tuple[float, Identity]]
"""Identities by their credentials, each until a time."""

_log = logging.getLogger(__name__)


class Refused(Exception):
    """The credentials prove nothing; the message says why, and quotes nothing of them."""


class Unanswered(Refused):
    """It is not known whether they do: the authority does not answer."""


class Overloaded(Unanswered):
    """No issuer is asked now: the caller should come again a little later."""


class ServerAuthenticator:
    """See `rota.server.access.identity.Authenticator`."""

    def __init__(self, policy: Policy, tokens: Tokens, bearers: IssuedTokens) -> None:
        self.policy = policy
        self._tokens = tokens
        self._bearers = bearers
        self._unauthenticated = unauthenticated(policy)
        self._issuers = policy.document.issuers
        self._known = _Kept()
        self._refused = _Kept()
        """Apart from those, so that invented credentials push no others out."""
        self._verifying: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop verifying the tokens of streams."""
        for task in self._verifying:
            task.cancel()
        await asyncio.gather(*self._verifying, return_exceptions=True)
        self._bearers.close()

    def known(self, credentials: Credentials) -> Identity | None:
        if credentials is NO_CREDENTIALS:
            return self._unauthenticated
        if self.policy.document.issuers is not self._issuers:
            self._forget_after_new_issuers()
        key = _key(credentials)
        for kept in (self._known, self._refused):
            found = kept.get(key)
            if found is not None and time.monotonic() < found[0]:
                return found[1]
        return None

    async def identify(self, credentials: Credentials) -> Identity:
        self._forget_after_new_issuers()
        key, issuers = _key(credentials), self._issuers
        kept, other, good_for_s = self._known, self._refused, GOOD_FOR_S
        try:
            identity = await self._verify(credentials)
        except Refused as refused:
            log_refusal(_log, "credentials were refused", source_of(ORIGIN.get()), detail=str(refused))
            if isinstance(refused, Overloaded):
                return unauthenticated(self.policy, str(refused), ErrorCode.THROTTLED)
            identity = unauthenticated(self.policy, str(refused))
            kept, other, good_for_s = self._refused, self._known, BAD_FOR_S
        other.pop(key, None)
        if issuers is self._issuers:
            kept[key] = time.monotonic() + good_for_s, identity
            while len(kept) > REMEMBERED:
                kept.popitem(last=False)
        return identity

    def _forget_after_new_issuers(self) -> None:
        issuers = self.policy.document.issuers
        if issuers != self._issuers:
            self._known.clear()
            self._refused.clear()
        self._issuers = issuers

    async def _verify(self, credentials: Credentials) -> Identity:
        """A header wins over a certificate: a client sends a token on purpose."""
        if not credentials.authorization:
            caller = credentials.certificate
            return self._unauthenticated if caller is None else Identity(caller, self.policy)
        token, tokens = _bearer(credentials.authorization), self._tokens
        if is_ours(token):
            try:
                presented = parse(token)
            except MalformedToken as malformed:
                raise Refused(str(malformed)) from None
            await tokens.read_again(presented.token_id)
            record, refusal = tokens.judge(presented)
            if record is None or refusal:
                raise Refused(refusal)
            caller = Caller(record.subject, "token", grants=record.grants, expires_at_ms=record.expires_at_ms)
            return Identity(caller, self.policy, still_refused=lambda: tokens.judge(presented)[1])
        if token.count(".") != 2:
            raise Refused("neither an API token nor a JWT")
        caller = await self._bearers.caller_of(token)
        return Identity(caller, self.policy, still_refused=self._verifying_again(token, caller))

    def _verifying_again(self, token: str, caller: Caller) -> Callable[[], str]:
        """A function that says why a JWT is not accepted any more; empty while it is.

        A JWT may outlive its verification, as on a stream. Then it is verified again in the background, at once if the
        access file has other issuers, and the next use gets the result. While no issuer answers, it stays as it was.
        """
        refusal, verify_at, issuers = "", time.monotonic() + GOOD_FOR_S, self.policy.document.issuers

        async def verify() -> None:
            nonlocal refusal
            try:
                if await self._bearers.caller_of(token) != caller:
                    refusal = "the token names another caller by now"
            except Unanswered:
                return
            except Refused as refused:
                refusal = str(refused)

        def still_refused() -> str:
            nonlocal verify_at, issuers
            now, current = time.monotonic(), self.policy.document.issuers
            if (now >= verify_at or current != issuers) and not refusal:
                verify_at, issuers = now + GOOD_FOR_S, current
                task = asyncio.create_task(verify())
                self._verifying.add(task)
                task.add_done_callback(self._verifying.discard)
            return refusal

        return still_refused


def _key(credentials: Credentials) -> bytes | Caller | None:
    """Not the secret itself, which should not be kept for long.

    For a certificate it is the caller with its expiry: the same caller's next certificate is good for longer.
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
