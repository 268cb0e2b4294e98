"""JWTs of the issuers that the access file names: checked here with their keys, or by asking Kubernetes."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import jwt

from rota.access.caller import Caller
from rota.access.claims import Issuer, UnusableClaims, caller_of_claims, caller_of_review, end_of_claims
from rota.api.access.identity import Policy
from rota.observability.refusals import log_refusal
from rota.server.access.authenticator import Refused, Unanswered
from rota.server.access.key_sets import KeySet, KeysUnavailable, http_client

_REVIEW_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
_REQUIRED = ["exp", "iss", "aud"]

_log = logging.getLogger(__name__)


class IssuedTokens:
    """See `rota.server.access.authenticator.Bearers`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._key_sets: dict[Issuer, KeySet] = {}

    async def caller_of(self, token: str) -> Caller:
        header, claims, issuer = self._read(token)
        try:
            if issuer.review:
                status = await _review(token, issuer)
                return caller_of_review(status, issuer, expires_at_ms=end_of_claims(claims, issuer))
            return caller_of_claims(await self._claims(token, header, issuer), issuer)
        except UnusableClaims as error:
            raise Refused(str(error)) from error

    def _read(self, token: str) -> tuple[dict[str, Any], dict[str, Any], Issuer]:
        """What the token says of itself, of which nothing is believed: it only chooses who is asked."""
        try:
            header = jwt.get_unverified_header(token)
            claims = jwt.decode(token, options={"verify_signature": False})
        except jwt.InvalidTokenError as error:
            raise Refused("not a JWT") from error
        named = claims.get("iss")
        issuer = next((each for each in self._policy.document.issuers if each.issuer == named), None)
        if issuer is None:
            raise Refused("the token's issuer is not one that the access file names")
        return header, claims, issuer

    async def _claims(self, token: str, header: dict[str, Any], issuer: Issuer) -> dict[str, Any]:
        key_set = self._key_sets.get(issuer)
        if key_set is None:
            key_set = self._key_sets[issuer] = KeySet(issuer)
        try:
            key = await key_set.key(header.get("kid"))
        except KeysUnavailable as error:
            raise Unanswered(f"{issuer.issuer}: {error}") from error
        if key is None:
            raise Refused("the token is signed with a key that its issuer does not have")
        try:
            return jwt.decode(
                token,
                key,
                algorithms=list(issuer.algorithms),
                audience=list(issuer.audiences),
                issuer=issuer.issuer,
                leeway=issuer.leeway_s,
                options={"require": _REQUIRED},
            )
        except jwt.InvalidTokenError as error:
            raise Refused(_reason(error)) from error


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


async def _review(token: str, issuer: Issuer) -> dict[str, Any]:
    """Ask the API server, which also knows of pods and accounts that are gone."""
    asked = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": list(issuer.audiences)},
    }
    try:
        async with http_client(issuer) as client:
            answer = await client.post(issuer.review.rstrip("/") + _REVIEW_PATH, json=asked)
        answer.raise_for_status()
        status: dict[str, Any] = answer.json()["status"]
    except (OSError, httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        log_refusal(_log, "no review of a token", issuer.issuer, issuer=issuer.issuer, why=type(error).__name__)
        raise Unanswered("the API server does not answer") from error
    return status
