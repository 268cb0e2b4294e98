"""Tokens of issuers: JWTs that are checked here with their issuers' keys, or by asking a Kubernetes API server."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import jwt
import msgspec
from jwt import PyJWK, PyJWKSet
from msgspec import Struct

from rota.core.access.budgets import BUDGETS, Budgets, Places
from rota.core.access.document import SERVICE_ACCOUNT, USER, Issuer
from rota.core.access.rules import KUBERNETES, Caller, Pod, Text, name_by
from rota.core.access.sources import source_of
from rota.server.access.authenticator import Overloaded, Refused, Unanswered
from rota.server.access.files import Reread
from rota.server.access.identity import ORIGIN, Policy
from rota.server.observability.logs import log_refusal

MAX_AGE_S = 300.0
LEAST_PAUSE_S = 10.0
"""Between two fetches of keys, if the first has failed or if a token names an unknown key."""
TIMEOUT_S = 5.0
MAX_BYTES = 1024 * 1024
_REQUIRED: Any = {"require": ["exp", "iss", "aud"]}
_SIGNATURE_ONLY: Any = {"verify_aud": False, "verify_exp": False, "verify_nbf": False, "verify_iat": False}
_REVIEWS, _KEYS = "/apis/authentication.k8s.io/v1/tokenreviews", "/openid/v1/jwks"
"""Paths of a Kubernetes API server: for reviews, and for the keys that it signs tokens with."""
_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):(.+)", re.DOTALL)
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"

_TOO_MANY = partial(Overloaded, "too many tokens are being reviewed")

_log = logging.getLogger(__name__)


class IssuedTokens:
    """The tokens of the issuers that the access file names."""

    def __init__(self, policy: Policy, budget: ReviewBudget | None = None) -> None:
        self._policy = policy
        self._budget = budget or ReviewBudget()
        self._authorities: dict[Issuer, Authority] = {}

    async def caller_of(self, token: str) -> Caller:
        """The caller that a token identifies; raises `Refused`, and `Unanswered` if its issuer does not answer."""
        try:
            unverified = jwt.decode_complete(token, options={"verify_signature": False})
        except jwt.InvalidTokenError as error:
            raise Refused("not a JWT") from error
        # The claims that are not verified yet only choose the verifier.
        header, claims = unverified["header"], unverified["payload"]
        issuer = next((each for each in self._policy.document.issuers if each.issuer == claims.get("iss")), None)
        if issuer is None:
            raise Refused("the token's issuer is not one that the access file names")
        authority = self._authorities.get(issuer)
        if authority is None:
            authority = self._authorities[issuer] = Authority(issuer, self._budget)
        return await authority.caller_of(token, header.get("kid"), claims)

    def close(self) -> None:
        """Stop asking issuers."""
        for authority in self._authorities.values():
            authority.close()


class Authority:
    """One issuer, as this server asks it. While its keys cannot be fetched, the known ones stay good."""

    def __init__(self, issuer: Issuer, budget: ReviewBudget) -> None:
        self._issuer = issuer
        self._budget = budget
        self._keys: list[PyJWK] = []
        self._fetched_at = self._asked_at = -MAX_AGE_S
        self._fetching = asyncio.Lock()
        self._reviews: dict[str, asyncio.Task[Caller]] = {}
        """Those under way, by token."""
        self._tls: Reread[ssl.SSLContext] | None = None

    async def caller_of(self, token: str, key_id: object, unverified: Mapping[str, Any]) -> Caller:
        """As `IssuedTokens.caller_of`."""
        issuer = self._issuer
        if not issuer.review:
            named = {"audience": list(issuer.audiences), "issuer": issuer.issuer, "leeway": issuer.leeway_s}
            return caller_of_claims(self._verified(token, await self.key(key_id), options=_REQUIRED, **named), issuer)
        review = self._reviews.get(token)
        if review is None:
            review = self._reviews[token] = asyncio.create_task(self._reviewed(token, key_id, unverified))
            review.add_done_callback(lambda _: self._forget(token))
        return await asyncio.shield(review)

    def close(self) -> None:
        for task in self._reviews.values():
            task.cancel()

    def _verified(self, token: str, key: PyJWK, **checks: Any) -> dict[str, Any]:
        try:
            return jwt.decode(token, key, algorithms=list(self._issuer.algorithms), **checks)
        except jwt.InvalidTokenError as error:
            raise Refused(_reason(error)) from error

    # --- keys ----------------------------------------------------------------------------------------

    async def key(self, key_id: object) -> PyJWK:
        """The key of this id, fetched first if the keys are old or do not have it; a token without an id means the
        only key. Raises `Refused` for an unknown key, and `Unanswered` if there are no keys.

        This is no `PyJWKClient`, because that blocks, has no limits of size, and drops old keys during an outage.
        """
        if self._must_fetch(key_id) or (self._fetching.locked() and self._find(key_id) is None):
            async with self._fetching:
                if self._must_fetch(key_id):
                    await self._fetch()
        found = self._find(key_id)
        if found is None and not self._keys:
            raise Unanswered(f"{self._issuer.issuer}: its keys cannot be fetched")
        if found is None:
            raise Refused("the token is signed with a key that its issuer does not have")
        return found

    def _find(self, key_id: object) -> PyJWK | None:
        if key_id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.key_id == key_id), None)

    def _must_fetch(self, key_id: object) -> bool:
        now, source = time.monotonic(), self._issuer.jwks
        is_file = bool(source) and not source.startswith(("http://", "https://"))
        may_fetch = is_file or now - self._asked_at >= LEAST_PAUSE_S
        return may_fetch and (now - self._fetched_at >= MAX_AGE_S or self._find(key_id) is None)

    async def _fetch(self) -> None:
        self._asked_at = time.monotonic()
        try:
            found = PyJWKSet.from_dict(await self._key_set()).keys
            # A set may have keys for another purpose.
            keys = [key for key in found if key.public_key_use in (None, "sig") and key.key_type != "oct"]
            if not keys:
                raise ValueError("no keys to check signatures with")
        except Exception as error:
            # Whatever the issuer answers, the keys that are known stay good.
            why = str(error) or repr(error)
            _log.warning("no keys of an issuer", extra={"issuer": self._issuer.issuer, "why": why})
        else:
            self._keys, self._fetched_at = keys, time.monotonic()

    async def _key_set(self) -> dict[str, Any]:
        issuer = self._issuer
        url = issuer.review.rstrip("/") + _KEYS if issuer.review else issuer.jwks
        if not url:
            configuration = await self._ask("GET", issuer.issuer.rstrip("/") + "/.well-known/openid-configuration")
            url = str(configuration.get("jwks_uri", ""))
        elif not url.startswith(("http://", "https://")):
            return _json_object(_read(url.removeprefix("file://")))
        return await self._ask("GET", url)

    # --- reviews -------------------------------------------------------------------------------------

    async def _reviewed(self, token: str, key_id: object, unverified: Mapping[str, Any]) -> Caller:
        """The caller of a token by its review, which all calls with this token share."""
        with suppress(Unanswered):
            # Spare the API server tokens that it has not signed. If its keys cannot be read, it is asked anyway.
            self._verified(token, await self.key(key_id), options=_SIGNATURE_ONLY)
        status = await self._status(token)
        return caller_of_review(status, self._issuer, expires_at_ms=_end_of(unverified, self._issuer))

    def _forget(self, token: str) -> None:
        task = self._reviews.pop(token)
        if not task.cancelled():
            task.exception()  # All calls that waited for it may be gone.

    async def _status(self, token: str) -> Any:
        """The API server also knows of pods and accounts that are gone."""
        spec = {"token": token, "audiences": list(self._issuer.audiences)}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        with self._budget.one(source_of(ORIGIN.get())):
            try:
                return (await self._ask("POST", self._issuer.review.rstrip("/") + _REVIEWS, json=asked))["status"]
            except Exception as error:
                issuer = self._issuer.issuer
                log_refusal(_log, "no review of a token", issuer, issuer=issuer, why=type(error).__name__)
                raise Unanswered("the API server does not answer") from error

    async def _ask(self, method: str, url: str, **sent: Any) -> dict[str, Any]:
        """The JSON object that a URL answers with, within a time and a size; raises for anything else.

        The authorities and the server's own token for the issuer may change: their files are read again.
        """
        issuer = self._issuer
        if self._tls is None:
            files = [Path(issuer.ca_file)] if issuer.ca_file else []
            self._tls = Reread(files, lambda: ssl.create_default_context(cafile=issuer.ca_file or None))
        headers = {}
        if issuer.bearer_file:
            headers["authorization"] = f"Bearer {_read(issuer.bearer_file).decode('ascii').strip()}"
        data = b""
        async with (
            asyncio.timeout(TIMEOUT_S),
            httpx.AsyncClient(verify=self._tls.content, timeout=TIMEOUT_S, trust_env=False) as client,
            client.stream(method, url, headers=headers, **sent) as answer,
        ):
            answer.raise_for_status()
            async for chunk in answer.aiter_bytes():
                data += chunk
                if len(data) > MAX_BYTES:
                    break
        return _json_object(data)


class ReviewBudget:
    """Reviews under way and begun in a second, by the address that they are asked for, and in all."""

    def __init__(
        self,
        budgets: Budgets = BUDGETS,
        over_budget: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._under_way = Places(budgets.token_reviews, partial(over_budget, "token_reviews"))
        self._begun = Places(budgets.token_reviews_per_s, partial(over_budget, "token_reviews_per_s"))
        self._second = 0

    @contextmanager
    def one(self, source: str) -> Iterator[None]:
        """Count a review as under way; raises `Overloaded` if that is too many."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._begun.taken.clear()
        with self._under_way.one(source, _TOO_MANY):
            self._begun.take(source, _TOO_MANY)
            yield


# --- from a token to its caller ------------------------------------------------------------------------


class _Named(Struct):
    name: Text
    uid: str = ""


class _Account(Struct):
    """The claim `kubernetes.io`."""

    namespace: Text
    serviceaccount: _Named
    pod: _Named | None = None


class _User(Struct, frozen=True):
    username: str = ""
    extra: dict[str, list[str]] | None = None


class _Status(Struct):
    """The status of a TokenReview."""

    authenticated: bool = False
    error: str | None = None
    audiences: list[str] | None = None
    user: _User = _User()


def caller_of_claims(claims: Mapping[str, Any], issuer: Issuer) -> Caller:
    """The caller that a verified token identifies; raises `Refused`."""
    expires_at_ms = _end_of(claims, issuer)
    if issuer.kind == "kubernetes":
        try:
            account = msgspec.convert(claims.get("kubernetes.io"), _Account)
        except ValueError as error:  # also for text that is no Unicode
            raise Refused("the token is no service account's") from error
        pod = account.pod or _Named("")
        return _service_account(issuer, account.namespace, account.serviceaccount.name, pod, expires_at_ms)
    subject, groups = claims.get(issuer.subject_claim), claims.get(issuer.groups_claim) or []
    if not isinstance(subject, str) or not subject:
        raise Refused(f"the claim {issuer.subject_claim!r} is missing")
    if not subject.isprintable():
        raise Refused(f"the claim {issuer.subject_claim!r} has characters that cannot be printed")
    try:
        named = msgspec.convert(groups.split() if isinstance(groups, str) else groups, tuple[str, ...])
    except ValueError as error:
        raise Refused(f"the claim {issuer.groups_claim!r} is no list of names") from error
    return Caller(
        name_by(issuer.prefix, USER, subject), "jwt", named, expires_at_ms=expires_at_ms, issuer=issuer.prefix
    )


def caller_of_review(status: Any, issuer: Issuer, *, expires_at_ms: int | None = None) -> Caller:
    """The caller that a Kubernetes TokenReview identifies; raises `Refused` if it rejects the token.

    A review does not return the token's expiry, but once it accepts the token, the token's own claim is valid.
    """
    try:
        review = msgspec.convert(status, _Status)
    except ValueError as error:  # also for text that is no Unicode
        raise Unanswered(f"{issuer.issuer}: its answer cannot be read") from error
    if not review.authenticated:
        raise Refused(f"the API server does not accept the token: {review.error or 'no reason given'}")
    if set(issuer.audiences).isdisjoint(review.audiences or ()):
        raise Refused("the token is for another audience")
    named = _ACCOUNT.fullmatch(review.user.username)
    if named is None:
        raise Refused("the token is no service account's")
    extra = review.user.extra or {}
    pod = _Named(*(next(iter(extra.get(key, ())), "") for key in (_POD_NAME, _POD_UID)))
    return _service_account(issuer, named[1], named[2], pod, expires_at_ms)


def _service_account(issuer: Issuer, namespace: str, name: str, pod: _Named, expires_at_ms: int | None) -> Caller:
    bound = Pod(namespace, pod.name, pod.uid, cluster=issuer.prefix) if pod.name else None
    subject = name_by(issuer.prefix, SERVICE_ACCOUNT, f"{namespace}/{name}")
    return Caller(subject, KUBERNETES, pod=bound, expires_at_ms=expires_at_ms)


def _end_of(claims: Mapping[str, Any], issuer: Issuer) -> int | None:
    """The end of a token, in milliseconds since 1970; None if it does not say, or says no number."""
    try:
        return (int(claims["exp"]) + issuer.leeway_s) * 1000
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _read(file: str) -> bytes:
    """A small file on this machine: read at once."""
    return Path(file).read_bytes()


def _json_object(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise ValueError("larger than any key set")
    return msgspec.json.decode(data, type=dict[str, Any])


def _reason(error: jwt.InvalidTokenError) -> str:
    """In our words: the library's may quote what the token says."""
    match error:
        case jwt.ExpiredSignatureError():
            return "the token has expired"
        case jwt.ImmatureSignatureError():
            return "the token is not good yet"
        case jwt.InvalidAudienceError():
            return "the token is for another audience"
        case jwt.MissingRequiredClaimError():
            return "the token must have an issuer, an audience and an end"
        case _:
            return "the token's signature does not fit"
