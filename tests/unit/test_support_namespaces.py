"""The network in which other tests lose packets does as it says, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.cluster_wiring import POSTGRES, REDIS, Ports
from tests.support.namespaced_network import CLIENTS, NamespacedNetwork
from tests.support.namespaces import skip_without_namespaces
from tests.support.ports import free_port
from tests.support.valkey import ValkeyServer

pytestmark = pytest.mark.processes


@pytest.fixture
def network() -> NamespacedNetwork:
    skip_without_namespaces()
    network = NamespacedNetwork()
    network.place(POSTGRES)
    return network


@pytest.fixture
def client(network: NamespacedNetwork) -> Iterator[redis.Redis]:
    """Of a server on a host of its own, through the relay on the clients' host."""
    server = ValkeyServer(place=network.place(REDIS))
    client = redis.Redis(port=server.port, socket_timeout=0.3, retry=Retry(NoBackoff(), 0))
    with network.up(Ports(free_port(), server.port, {})), server, client:
        yield client


def test_a_cut_link_is_silent_both_ways_until_it_is_restored(network: NamespacedNetwork, client: redis.Redis) -> None:
    for source, target in ((CLIENTS, REDIS), (REDIS, CLIENTS)):
        assert client.ping()
        network.cut_one_way(source, target)
        with pytest.raises(redis.TimeoutError):
            client.ping()
        network.heal()
    assert client.ping()


@pytest.mark.slow
def test_some_of_the_packets_are_lost_and_sent_again(network: NamespacedNetwork, client: redis.Redis) -> None:
    client.connection_pool.connection_kwargs["socket_timeout"] = 30
    network.lose(CLIENTS, REDIS, 30)
    while not network.hit():
        assert client.ping()
    assert client.ping()
