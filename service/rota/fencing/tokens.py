"""Signed fencing tokens: proofs of a group's generation that any service verifies offline.

A token is a JWT signed with Ed25519 (`EdDSA`), so that every JWT library reads it. A signature proves that the holder
*had* the generation when it was signed. The receiver of the write must check that it has seen no newer one: `Fence`
does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import jwt
import msgspec
from msgspec import Struct

from rota.fencing.errors import InvalidToken, StaleToken
from rota.fencing.keys import KeyRing, PublicKeys
from rota.protocol.fencing_token import fencing_token, generation_of

TOKEN_TYPE: Final = "rota-fence+jwt"
"""The type in the token's header, so that no token that was signed for another purpose is accepted."""
_ISSUER = "rota"
_CLAIMS = {"member_id": "sub", "issued_at": "iat", "expires_at": "exp"}
_MAX_TOKEN_CHARS = 8_192
_BY_SIGNATURE: Any = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
"""The caller of `verify` provides the time."""


class FencingToken(
    Struct,
    frozen=True,
    rename={"member_id": "sub", "issued_at": "iat", "expires_at": "exp"},
    tag_field="iss",
    tag=_ISSUER,
):
    """The content of a token. Times are seconds since 1970, as in JWTs."""

    namespace: str
    group_id: str
    generation_id: int
    member_id: str
    is_leader: bool
    issued_at: int
    expires_at: int
    fencing_token: int
    """The number to compare: it also distinguishes a static member from its successor in the same generation."""
    group_instance_id: str | None = None


def sign(token: FencingToken, keys: KeyRing) -> str:
    """Return the token as signed text."""
    headers = {"kid": keys.signing_id, "typ": TOKEN_TYPE}
    return jwt.encode(msgspec.to_builtins(token), keys.signing, algorithm="EdDSA", headers=headers)


def verify(text: str, keys: PublicKeys, *, now: float | None = None, leeway_s: float = 0.0) -> FencingToken:
    """Check a token's signature and its time.

    Args:
        text: The token.
        keys: The server's public keys; see `rota.fencing.keys.public_keys`.
        now: Seconds since 1970, by default this machine's clock.
        leeway_s: Maximum lead of this machine's clock over the server's.

    Raises:
        InvalidToken: Do not act on it. No other error is raised for any text.
    """
    try:
        header = jwt.get_unverified_header(text) if len(text) <= _MAX_TOKEN_CHARS else {}
    except (jwt.InvalidTokenError, RecursionError, ValueError) as error:
        raise InvalidToken("not a token") from error
    if header.get("typ") != TOKEN_TYPE or "crit" in header:
        raise InvalidToken("not a fencing token")
    key = keys.get(header.get("kid", ""))
    if key is None:
        raise InvalidToken("signed with a key that is not known here")
    try:
        claims = jwt.decode(text, key, algorithms=["EdDSA"], issuer=_ISSUER, options=_BY_SIGNATURE)
        token = msgspec.convert(claims, FencingToken)
    except (jwt.InvalidTokenError, msgspec.ValidationError, RecursionError, ValueError) as error:
        raise InvalidToken("the signature does not fit") from error
    if generation_of(token.fencing_token) != token.generation_id:
        raise InvalidToken("the fencing token is of another generation")
    if token.expires_at <= (time.time() if now is None else now) - leeway_s:
        raise InvalidToken("the token has expired")
    return token


class Fence:
    """Admits writes with a valid token, but not of an older generation or a replaced static member.

    `highest` is the fence: store it with the data, if that outlives this process. Under `namespace/group_id` it has the
    first fencing token of the newest generation seen. Members of one generation write concurrently, so a takeover of
    one must not reject the others: `namespace/group_id/group_instance_id` has that member's highest token.
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
        """Return the token if it may write; raise `FenceRefused`. Pass the group that owns the target."""
        token = verify(text, self._keys(), now=self._clock())
        if group_id not in (None, token.group_id) or namespace not in (None, token.namespace):
            raise InvalidToken(f"a token of {token.namespace}/{token.group_id}, which does not own this target")
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
