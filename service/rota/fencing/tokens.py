"""Signed fencing tokens: proofs of a group's generation that any service verifies offline.

A token is a JWT signed with Ed25519 (`EdDSA`), so that every JWT library reads it. A signature proves that the holder
*had* the generation when it was signed. The receiver of the write must check that no newer one was seen: `Fence` does
it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature

from rota.fencing.errors import InvalidToken, StaleToken
from rota.fencing.keys import KeyRing, PublicKeys, base64url, from_base64url
from rota.protocol.fencing_token import fencing_token, generation_of

TOKEN_TYPE: Final = "rota-fence+jwt"
"""Its header says so, so that no token that was signed for something else is taken for one."""
_MAX_TOKEN_CHARS = 8_192


@dataclass(frozen=True, slots=True)
class FencingToken:
    """What a token says. Times are seconds since 1970, as JWTs have them."""

    namespace: str
    group_id: str
    generation_id: int
    member_id: str
    is_leader: bool
    issued_at: int
    expires_at: int
    fencing_token: int
    """The number to compare: it also tells a static member from its successor in the same generation."""
    group_instance_id: str | None = None


def sign(token: FencingToken, keys: KeyRing) -> str:
    """The token as text."""
    header = {"alg": "EdDSA", "kid": keys.signing_id, "typ": TOKEN_TYPE}
    claims = {
        "iss": "rota",
        "sub": token.member_id,
        "iat": token.issued_at,
        "exp": token.expires_at,
        "namespace": token.namespace,
        "group_id": token.group_id,
        "generation_id": token.generation_id,
        "fencing_token": token.fencing_token,
        "group_instance_id": token.group_instance_id,
        "is_leader": token.is_leader,
    }
    signed = f"{_segment(header)}.{_segment(claims)}"
    return f"{signed}.{base64url(keys.signing.sign(signed.encode()))}"


def verify(text: str, keys: PublicKeys, *, now: float | None = None, leeway_s: float = 0.0) -> FencingToken:
    """Check a token's signature and its time.

    Args:
        text: The token.
        keys: The server's public keys; see `rota.fencing.keys.public_keys`.
        now: Seconds since 1970, by default this machine's clock.
        leeway_s: How far this machine's clock may be ahead of the server's.

    Raises:
        InvalidToken: Do not act on it. Nothing else is raised, whatever the text is.
    """
    if len(text) > _MAX_TOKEN_CHARS:
        raise InvalidToken("not a token")
    try:
        header_part, claims_part, signature_part = text.split(".")
        header = _read(header_part)
        signature = from_base64url(signature_part)
    except ValueError as error:
        raise InvalidToken("not a token") from error
    if header.get("alg") != "EdDSA" or header.get("typ") != TOKEN_TYPE or "crit" in header:
        raise InvalidToken("not a fencing token")
    key_id = header.get("kid")
    key = keys.get(key_id) if isinstance(key_id, str) else None
    if key is None:
        raise InvalidToken("signed with a key that is not known here")
    try:
        key.verify(signature, f"{header_part}.{claims_part}".encode())
        token = _from_claims(_read(claims_part))
    except (InvalidSignature, KeyError, TypeError, ValueError) as error:
        raise InvalidToken("the signature does not fit") from error
    if token.expires_at <= (time.time() if now is None else now) - leeway_s:
        raise InvalidToken("the token has run out")
    return token


class Fence:
    """Admits writes with a valid token, neither of an older generation nor of a static member that was replaced.

    `highest` is the fence: keep it with the data, where that outlives this process. Under `namespace/group_id` it has
    the first fencing token of the newest generation seen. Members of one generation write side by side, so a takeover
    of one must not refuse the others: under `namespace/group_id/group_instance_id` it has that member's highest token.
    """

    def __init__(
        self,
        keys: Callable[[], PublicKeys],
        *,
        highest: MutableMapping[str, int] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._highest: MutableMapping[str, int] = {} if highest is None else highest
        self._clock = clock

    def admit(self, text: str, *, group_id: str | None = None, namespace: str | None = None) -> FencingToken:
        """The token, where it may write; raises `FenceRefused`. Give the group that owns the target."""
        token = verify(text, self._keys(), now=self._clock())
        if group_id not in (None, token.group_id) or namespace not in (None, token.namespace):
            raise InvalidToken(f"a token of {token.namespace}/{token.group_id}, which this does not belong to")
        name = f"{token.namespace}/{token.group_id}"
        marks = {name: fencing_token(token.generation_id)}
        if token.group_instance_id is not None:
            marks[f"{name}/{token.group_instance_id}"] = token.fencing_token
        for key, mark in marks.items():
            newest = self._highest.get(key, 0)
            if mark < newest:
                raise StaleToken(f"the fencing token {mark} of {key} is over: {newest} has been here")
        self._highest.update({key: mark for key, mark in marks.items() if mark > self._highest.get(key, 0)})
        return token


def _segment(value: dict[str, Any]) -> str:
    return base64url(json.dumps(value, separators=(",", ":")).encode())


def _read(segment: str) -> dict[str, Any]:
    """A part of a token as a JSON object; ValueError for anything else, also for one that is nested too deeply."""
    try:
        value = json.loads(from_base64url(segment))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _from_claims(claims: dict[str, Any]) -> FencingToken:
    token = FencingToken(
        claims["namespace"],
        claims["group_id"],
        claims["generation_id"],
        claims["sub"],
        claims["is_leader"],
        claims["iat"],
        claims["exp"],
        # A release that did not count takeovers signed without it.
        claims.get("fencing_token", fencing_token(claims["generation_id"])),
        claims.get("group_instance_id"),
    )
    numbers = (token.generation_id, token.fencing_token, token.issued_at, token.expires_at)
    if claims["iss"] != "rota" or not all(type(number) is int for number in numbers):
        raise ValueError("not the claims of a fencing token")
    if generation_of(token.fencing_token) != token.generation_id:
        raise ValueError("the fencing token is of another generation")
    return token
