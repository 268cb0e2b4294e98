"""The ports that a worker does not share."""

from __future__ import annotations

import pytest

from rota.server.own_ports import OwnPorts, own_ports
from rota.server.settings import Address, Settings


def settings(http: str, **others: object) -> Settings:
    return Settings.model_validate({"http": http, "workers": 3, "allow_anonymous": True, **others})


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_on_loopback_each_worker_gets_any_free_ports(host: str) -> None:
    listening = settings(f"{host}:8080", grpc=f"{host}:9090")
    free = Address.parse(f"{host}:0")
    assert own_ports(listening, 2) == OwnPorts(free, free)


def test_beyond_loopback_no_port_is_opened_that_nobody_has_named() -> None:
    assert own_ports(settings("0.0.0.0:8080", grpc="127.0.0.1:9090"), 0) == OwnPorts(None, Address("127.0.0.1", 0))


def test_named_ports_are_those_of_http_then_grpc() -> None:
    listening = settings("0.0.0.0:8080", grpc="10.0.0.7:9090", worker_ports=8101)
    owned = [own_ports(listening, worker) for worker in range(3)]
    assert [own.http for own in owned] == [Address("0.0.0.0", port) for port in (8101, 8102, 8103)]
    assert [own.grpc for own in owned] == [Address("10.0.0.7", port) for port in (8104, 8105, 8106)]


def test_ports_past_the_last_one_are_refused() -> None:
    assert settings("0.0.0.0:8080", worker_ports=65_530).worker_ports == 65_530
    with pytest.raises(ValueError, match="must leave two ports for each worker"):
        settings("0.0.0.0:8080", worker_ports=65_531)


def test_without_grpc_there_is_no_port_for_it() -> None:
    assert own_ports(settings("127.0.0.1:8080", worker_ports=8101), 1) == OwnPorts(Address("127.0.0.1", 8102), None)
