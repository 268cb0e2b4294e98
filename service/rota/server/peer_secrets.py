"""The file with the secrets by which replicas of one store authenticate each other."""

from __future__ import annotations

import secrets
from pathlib import Path

MIN_CHARACTERS = 16


def new_peer_secret() -> str:
    """Return a new random secret, for replicas that are started together."""
    return secrets.token_urlsafe(32)


def read_peer_secrets(path: Path) -> list[str]:
    """Read one secret per line; raise ValueError, which never quotes them.

    The first is sent to others, and all are accepted. So a new secret needs two rolling restarts: as the second line
    everywhere, then as the first.
    """
    try:
        text = path.read_text("ascii")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ValueError(f"cannot be read: {reason}") from error
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found or not all(len(secret) >= MIN_CHARACTERS and secret.isprintable() for secret in found):
        raise ValueError(f"must hold a secret a line, each of at least {MIN_CHARACTERS} printable characters")
    return found
