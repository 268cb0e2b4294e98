"""How a liveness store is named."""

from __future__ import annotations

from importlib.util import find_spec

SCHEMES = "redis://…, rediss://… (TLS) or unix://…"


def check_liveness_url(url: str) -> None:
    """Raise ValueError unless a `RedisLiveness` can be made of this. The message has no password in it."""
    if find_spec("redis") is None:
        raise ValueError("needs the redis package: pip install 'rota[redis]'")
    from redis.asyncio.connection import parse_url

    try:
        parse_url(url)
    except ValueError:
        raise ValueError(f"must be {SCHEMES}") from None
