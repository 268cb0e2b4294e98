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


def test_a_server_that_a_test_left_dead_is_started_for_the_next(valkey_server: ValkeyServer) -> None:
    valkey_server.kill9()  # whichever of the two tests runs second finds it running


def test_the_fixture_gives_a_server_that_runs_and_is_empty(valkey_server: ValkeyServer, client: redis.Redis) -> None:
    assert valkey_server.process.running
    assert client.dbsize() == 0
    client.set("left", "behind")


def test_flushall_forgets_while_it_keeps_running(valkey_server: ValkeyServer, client: redis.Redis) -> None:
    client.set("member", "alive")
    pid = valkey_server.process.pid

    valkey_server.flushall()

    assert client.get("member") is None
    assert valkey_server.process.pid == pid


def test_a_stopped_server_refuses_connections_until_it_starts(valkey_server: ValkeyServer, client: redis.Redis) -> None:
    valkey_server.stop()

    with pytest.raises(redis.ConnectionError):
        client.ping()
    valkey_server.start()
    assert client.ping()


def test_options_reach_the_server() -> None:
    with ValkeyServer(options=["--maxmemory", "1kb"]) as server, redis.Redis.from_url(server.url) as client:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("too", "much")
