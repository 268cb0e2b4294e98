"""Sessions of the console: the store keeps a sealed token, and only the browser's cookie opens it.

The cookie is no credential of the API: 192 random bits, behind 64 bits that the sessions of one caller share, so that
these can be counted. The store keeps a digest of it and the token that was shown, encrypted by a key that is derived
from the cookie. So neither a copy of the store nor the cookie alone yields the token.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

SECRET_BYTES = 32
CALLER_BYTES = 8
"""As many bytes at the beginning of a secret, and of a session's name, stand for the caller."""
SESSION_MS = 12 * 3_600_000
"""The longest that a browser stays signed in; the token may end before that."""
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The row of a session. Times are since 1970."""

    digest: str
    sealed: str
    expires_at_ms: int


def cookie_of(secret: bytes) -> str:
    """The cookie's text for `SECRET_BYTES` random bytes."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"{SECRET_BYTES} random bytes are needed")
    return urlsafe_b64encode(secret).decode().rstrip("=")


def secret_for(subject: str, random: bytes) -> bytes:
    """The secret of a new session of a caller, from `SECRET_BYTES` random bytes."""
    caller = hashlib.sha256(b"rota console session: caller\0" + subject.encode()).digest()
    return caller[:CALLER_BYTES] + random[CALLER_BYTES:]


def secret_of(cookie: str) -> bytes | None:
    """The bytes of a cookie; None for text of another form."""
    return urlsafe_b64decode(f"{cookie}=") if _COOKIE.fullmatch(cookie) else None


def digest_of(secret: bytes) -> str:
    """The name of a session in the store. It begins with the caller's bytes."""
    name = hashlib.sha256(b"rota console session: name\0" + secret).digest()
    return (secret[:CALLER_BYTES] + name[CALLER_BYTES:]).hex()


def new_session(secret: bytes, token: str, now_ms: int) -> SessionRecord:
    """The row for a session that begins now."""
    return SessionRecord(digest_of(secret), _cipher(secret).encrypt(token.encode()).decode(), now_ms + SESSION_MS)


def token_of(secret: bytes, record: SessionRecord) -> str | None:
    """The token in a session's row; None if the row was changed or belongs to another cookie."""
    from cryptography.fernet import InvalidToken

    try:
        return _cipher(secret).decrypt(record.sealed).decode()
    except InvalidToken:
        return None


def _cipher(secret: bytes) -> Fernet:
    from cryptography.fernet import Fernet

    return Fernet(urlsafe_b64encode(hashlib.sha256(b"rota console session: token\0" + secret).digest()))
