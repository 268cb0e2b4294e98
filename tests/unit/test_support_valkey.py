"""The Valkey that other tests rely on forgets when it is killed, and can be stalled and filled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.valkey import ValkeyServer

pytestmark = pytest.mark.processes


@pytest.fixture
def client(valkey_server: ValkeyServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey_server.url, socket_timeout=5) as connected:
        yield connected


def test_keys_are_lost_by_kill9_and_restart(valkey_server: ValkeyServer, client: redis.Redis) -> None:
    client.set("member", "alive")

    valkey_server.kill9()
    valkey_server.restart()

    assert client.get("member") is None
