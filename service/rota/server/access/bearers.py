"""JWTs of the issuers that the access file names: checked here with their keys, or by asking Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jwt
from jwt import PyJWK

from rota.access.claims import Issuer, UnusableClaims, caller_of_claims, caller_of_review, end_of_claims
from rota.access.rules import Caller
from rota.api.access.identity import Policy
from rota.server.access.authenticator import Refused, Unanswered
from rota.server.access.key_sets import KeySet, KeysUnavailable
from rota.server.access.reviews import ReviewBudget, Reviews

_KEYS_PATH = "/openid/v1/jwks"
"""Where a Kubernetes API server publishes the keys that it signs tokens with."""
_REQUIRED = ["exp", "iss", "aud"]
_SIGNATURE_ONLY: Any = {"verify_aud": False, "verify_exp": False, "verify_nbf": False, "verify_iat": False}


class IssuedTokens:
    """See `rota.server.access.authenticator.Bearers`."""

    def __init__(self, policy: Policy, budget: ReviewBudget | None = None) -> None:
        self._policy = policy
        self._budget = budget or ReviewBudget()
        self._reviews: dict[Issuer, Reviews] = {}
        self._key_sets: dict[Issuer, KeySet] = {}

    async def caller_of(self, token: str) -> Caller:
        header, claims, issuer = self._read(token)
        try:
            if issuer.review:
                await self._check_signature(token, header, issuer)
                status = await self._reviews_of(issuer).status(token)
                return caller_of_review(status, issuer, expires_at_ms=end_of_claims(claims, issuer))
            return caller_of_claims(await self._claims(token, header, issuer), issuer)
        except UnusableClaims as error:
            raise Refused(str(error)) from error
        except (AttributeError, TypeError) as error:
            raise Unanswered(f"{issuer.issuer}: its answer cannot be read") from error

    async def close(self) -> None:
        for reviews in self._reviews.values():
            await reviews.close()

    def _reviews_of(self, issuer: Issuer) -> Reviews:
        reviews = self._reviews.get(issuer)
        if reviews is None:
            reviews = self._reviews[issuer] = Reviews(issuer, self._budget)
        return reviews

    async def _check_signature(self, token: str, header: dict[str, Any], issuer: Issuer) -> None:
        """Spare the API server tokens that it has not signed. Where its keys cannot be read, it is asked anyway."""
        try:
            key = await self._key(header, replace(issuer, jwks=issuer.review.rstrip("/") + _KEYS_PATH, review=""))
            jwt.decode(token, key, algorithms=list(issuer.algorithms), options=_SIGNATURE_ONLY)
        except Unanswered:
            return
        except jwt.InvalidTokenError as error:
            raise Refused(_reason(error)) from error

    def _read(self, token: str) -> tuple[dict[str, Any], dict[str, Any], Issuer]:
        """The token's unverified claims: they only choose its verifier."""
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

    async def _key(self, header: dict[str, Any], issuer: Issuer) -> PyJWK:
        key_set = self._key_sets.get(issuer)
        if key_set is None:
            key_set = self._key_sets[issuer] = KeySet(issuer)
        try:
            key = await key_set.key(header.get("kid"))
        except KeysUnavailable as error:
            raise Unanswered(f"{issuer.issuer}: {error}") from error
        if key is None:
            raise Refused("the token is signed with a key that its issuer does not have")
        return key

    async def _claims(self, token: str, header: dict[str, Any], issuer: Issuer) -> dict[str, Any]:
        key = await self._key(header, issuer)
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
