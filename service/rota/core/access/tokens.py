"""API tokens: `rota_<id>_<secret><checksum>`. Only a digest is kept, so that a reader of the store cannot use it.

The secret has 256 random bits, so a fast digest is as good as a slow one. The prefix and the checksum are for programs
that look for secrets where there should be none, and tell a mistyped token without a look-up.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from zlib import crc32

from msgspec import Struct

from rota.core.access.rules import Rule
from rota.protocol.messages import Act

PREFIX = "rota_"
ID_CHARS = 10
SECRET_CHARS = 43
CHECKSUM_CHARS = 6
RANDOM_BYTES = 40
"""Eight for the id, 32 for the secret."""
_DAY_MS = 86_400_000
LIFE_MS = 90 * _DAY_MS
"""Lifetime of a token that is created without an expiry."""
SOON_MS = 14 * _DAY_MS
"""So long before a token expires its successor should be made."""
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TOKEN = re.compile(
    rf"rota_([0-9A-Za-z]{{{ID_CHARS}}})_([0-9A-Za-z]{{{SECRET_CHARS}}})([0-9A-Za-z]{{{CHECKSUM_CHARS}}})"
)


class MalformedToken(ValueError):
    """No token of ours. The message does not quote it."""


@dataclass(frozen=True, slots=True)
class Presented:
    """The content of a token's text: the id of its record, and the expected digest."""

    token_id: str
    digest: str


class TokenRecord(Struct, frozen=True):
    """The stored record of a token. `grants` is its scope; rules may allow its subject more. Times are since 1970."""

    token_id: str
    name: str
    digest: str
    grants: tuple[Rule, ...] = ()
    created_at_ms: int = 0
    expires_at_ms: int | None = None
    revoked_at_ms: int | None = None
    note: str = ""
    last_used_at_ms: int | None = None
    """Exact to minutes, and only in a store: a file of tokens is not rewritten when one is used."""

    @property
    def subject(self) -> str:
        return f"token:{self.name}"


@dataclass(frozen=True, slots=True)
class TokenAct:
    """The journal's event of a token: `Create`, `Revoke` or `Forget`, and its author."""

    at_ms: int
    done: str
    name: str
    token_id: str
    act: Act


def state_of(record: TokenRecord, now_ms: int) -> str:
    """`good`, `expired` or `revoked`."""
    if record.revoked_at_ms is not None:
        return "revoked"
    return "expired" if record.expires_at_ms is not None and record.expires_at_ms <= now_ms else "good"


def ends_soon(record: TokenRecord, now_ms: int) -> bool:
    """Whether a token that is good expires so soon that another one should take its place."""
    is_good = state_of(record, now_ms) == "good"
    return is_good and record.expires_at_ms is not None and record.expires_at_ms - now_ms <= SOON_MS


def mint(random: bytes) -> str:
    """A new token, of `RANDOM_BYTES` random bytes. To be shown once."""
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"{RANDOM_BYTES} random bytes are needed")
    token_id = _base62(random[:8])[-ID_CHARS:].rjust(ID_CHARS, "0")
    body = f"{PREFIX}{token_id}_{_base62(random[8:]).rjust(SECRET_CHARS, '0')}"
    return body + _checksum(body)


def parse(text: str) -> Presented:
    """What a token says; raises `MalformedToken`, also for one with a slip of the pen in it."""
    found = _TOKEN.fullmatch(text)
    if found is None or _checksum(text[:-CHECKSUM_CHARS]) != found[3]:
        raise MalformedToken("not a token: its form or its checksum is wrong")
    return Presented(found[1], hashlib.sha256(text.encode("ascii")).hexdigest())


def is_ours(text: str) -> bool:
    """Return whether the text has the prefix of our tokens."""
    return text.startswith(PREFIX)


def refusal_of(record: TokenRecord | None, presented: Presented, now_ms: int) -> str:
    """Why the token is not accepted; empty if it is. It does not reveal whether the id or the secret is wrong."""
    if record is None or not hmac.compare_digest(record.digest, presented.digest):
        return "the token is not known"
    if record.revoked_at_ms is not None:
        return f"token {record.name!r} was revoked"
    if record.expires_at_ms is not None and record.expires_at_ms <= now_ms:
        return f"token {record.name!r} has expired"
    return ""


def _checksum(body: str) -> str:
    return _base62(crc32(body.encode("ascii")).to_bytes(4, "big")).rjust(CHECKSUM_CHARS, "0")


def _base62(data: bytes) -> str:
    number, digits = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 62)
        digits = _DIGITS[digit] + digits
    return digits
