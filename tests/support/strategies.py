"""Strategies that are registered for one test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rota.core.assignors import registry


@contextmanager
def registered_for_one_test() -> Iterator[None]:
    """Forget at the end the strategies that were registered in this block."""
    known = dict(registry._KNOWN)
    try:
        yield
    finally:
        registry._KNOWN.clear()
        registry._KNOWN.update(known)
        registry._parsed.cache_clear()
