"""Liveness stores under test: the twin in memory and a real Valkey, with a clock of their own each."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from rota.core.replica.ports import Liveness
from rota.server.liveness.memory import MemoryLiveness
from rota.server.liveness.redis import RedisLiveness
from rota.server.runtime.clock import SystemClock
from tests.support.valkey import ValkeyServer

PATIENT_S = 10.0
"""Where a test is not about time, a machine that is busy with other tests may be slow."""


def on(
    server: ValkeyServer,
    *,
    incarnation: str | None = None,
    timeout_s: float = PATIENT_S,
    on_unusable: Callable[[], None] = lambda: None,
) -> RedisLiveness:
    named = incarnation or uuid.uuid4().hex
    return RedisLiveness(server.url, incarnation=named, timeout_s=timeout_s, on_unusable=on_unusable)


@pytest.fixture(params=["memory", "valkey"])
async def liveness(request: pytest.FixtureRequest) -> AsyncIterator[Liveness]:
    """Each implementation of the port in turn, empty."""
    if request.param == "memory":
        yield MemoryLiveness(SystemClock().monotonic_ms)
        return
    store = on(request.getfixturevalue("valkey_server"))
    yield store
    await store.close()
