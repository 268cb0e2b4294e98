"""Sessions of the console: the store keeps a sealed token, and only the browser's cookie opens it.

The cookie is no credential of the API: 192 random bits, behind 64 bits that the sessions of one caller share, so that
these can be counted. The store keeps a digest of it and the token that was shown, encrypted with a key that is derived
from the cookie. So neither a copy of the store nor the cookie alone yields the token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

SECRET_BYTES = 32
CALLER_BYTES = 8
"""As many bytes at the beginning of a secret, and of a session's name, stand for the caller."""
SESSION_MS = 12 * 3_600_000
"""The longest that a browser stays signed in; the token may end before that."""
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")
_TAG_BYTES = 32


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
    return SessionRecord(digest_of(secret), _seal(secret, token.encode()), now_ms + SESSION_MS)


def token_of(secret: bytes, record: SessionRecord) -> str | None:
    """The token in a session's row; None where the row was changed or belongs to another cookie."""
    sealed = b64decode(record.sealed)
    tag, hidden = sealed[:_TAG_BYTES], sealed[_TAG_BYTES:]
    if not hmac.compare_digest(tag, _tag(secret, hidden)):
        return None
    return _xor(hidden, _key_stream(secret, len(hidden))).decode()


def _seal(secret: bytes, token: bytes) -> str:
    """Encrypt, then authenticate. The key stream belongs to this session alone, and hides this one text."""
    hidden = _xor(token, _key_stream(secret, len(token)))
    return b64encode(_tag(secret, hidden) + hidden).decode()


def _key_stream(secret: bytes, length: int) -> bytes:
    return hashlib.shake_256(b"rota console session: token\0" + secret).digest(length)


def _tag(secret: bytes, hidden: bytes) -> bytes:
    return hmac.digest(hashlib.sha256(b"rota console session: tag\0" + secret).digest(), hidden, "sha256")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(left, right, strict=True))
