"""URLs of liveness stores."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rota.storage.urls import read_password, split_password_file

SCHEMES = "redis://…, rediss://… (TLS) or unix://…"


def check_liveness_url(url: str) -> None:
    """Raise ValueError unless a `RedisLiveness` can use this URL. The message contains no password."""
    if find_spec("redis") is None:
        raise ValueError("needs the redis package: pip install 'rota[redis]'")
    try:
        connection_options(url)
    except ValueError:
        raise ValueError(f"must be {SCHEMES}") from None


def connection_options(url: str) -> dict[str, Any]:
    """Return redis-py's options of a URL; a password file is read for each new connection."""
    from redis.asyncio.connection import parse_url

    redis_url, password_file = split_password_file(url)
    options: dict[str, Any] = {**parse_url(redis_url)}
    if password_file is not None:
        options.pop("password", None)
        options["credential_provider"] = _PasswordFile(options.pop("username", None), password_file)
    return options


@dataclass(frozen=True, slots=True)
class _PasswordFile:
    """A password file: see redis-py's `CredentialProvider`."""

    username: str | None
    file: Path

    def get_credentials(self) -> tuple[str, ...]:
        password = read_password(self.file)
        return (password,) if self.username is None else (self.username, password)

    async def get_credentials_async(self) -> tuple[str, ...]:
        return self.get_credentials()
