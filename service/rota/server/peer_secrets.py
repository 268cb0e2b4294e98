"""The file with the secrets that replicas of one store show each other."""

from __future__ import annotations

import secrets
from pathlib import Path

MIN_CHARACTERS = 16


def new_peer_secret() -> str:
    """A new random one, for replicas that are started together."""
    return secrets.token_urlsafe(32)


def read_peer_secrets(path: Path) -> list[str]:
    """One secret per line; raises ValueError, which quotes nothing of them.

    The first is shown to others, any of them is accepted. So a new one is brought in by two rolling restarts: as the
    second line everywhere, then as the first.
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
