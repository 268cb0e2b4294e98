"""The server around the API: settings, sockets, logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
from pathlib import Path

import pytest
from pydantic import ValidationError

from rota.protocol.limits import Limits
from rota.server import lifecycle
from rota.server.bootstrap import open_services
from rota.server.http.connection import HttpConfig
from rota.server.http_server import CannotListen, listen, url_of
from rota.server.observability.logs import configure_logging
from rota.server.settings import Address, Settings


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_STORE", "sqlite:///a.db")
    monkeypatch.setenv("ROTA_HTTP", "[::1]:9090")
    monkeypatch.setenv("ROTA_LEASE_MS", "2000")
    monkeypatch.setenv("ROTA_LIMITS__GROUP_MAX_SIZE", "5")
    settings = Settings()
    assert (settings.store, settings.http, settings.lease_ms) == ("sqlite:///a.db", Address("::1", 9090), 2_000)
    assert settings.limits == Limits(group_max_size=5)


def test_without_any_setting_the_documented_ones_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROTA_STORE", "ROTA_HTTP"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings()
    assert str(settings.http) == "127.0.0.1:8080"
    assert settings.store.startswith("sqlite:///")
    assert (settings.lease_ms, settings.shard_count, settings.limits) == (3_000, 64, Limits())


@pytest.mark.parametrize("is_direct", [True, False])
async def test_a_setting_gives_every_request_to_fastapi(is_direct: bool, tmp_path: Path) -> None:
    settings = Settings(store=f"sqlite:///{tmp_path}/rota.db", http=Address("127.0.0.1", 0), http_direct=is_direct)
    bound = [listen(settings.http)]

    async with open_services(settings, "http://127.0.0.1:8080") as services:
        (server,) = lifecycle._servers(services, settings, None, bound, None)

    bound[0].close()
    assert isinstance(server.config, HttpConfig)
    assert (server.config.member_calls is not None) is is_direct


@pytest.mark.parametrize(
    "wrong",
    [
        {"http": "8080"},
        {"http": "host:port"},
        {"http": ":8080"},
        {"http": "a:99999"},
        {"lease_ms": 999},
        {"shard_count": 0},
        {"log_format": "xml"},
        {"limits": {"group_max_size": -1}},
        {"limits": {"group_max_size": "many"}},
        {"limits": {"no_such_limit": 1}},
        {"grpc": "nowhere"},
        {"redis": "localhost:6379"},
        {"redis": "redis://localhost:port"},
        {"workers": 0},
        {"trusted_proxies": "10.0.0.1/8"},
        {"trusted_proxies": "proxy.example"},
        {"unknown": 1},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(wrong)


def test_a_port_that_is_taken_is_reported_with_its_address() -> None:
    with listen(Address("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert url_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(CannotListen, match=f"cannot listen on http://127.0.0.1:{port}: Address already in use"):
            listen(Address("127.0.0.1", port))


async def test_answers_are_not_held_back_by_nagle() -> None:
    """The plain loop sets TCP_NODELAY only on sockets that were made for TCP by name."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def on_connection(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        accepted.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    bound = listen(Address("127.0.0.1", 0))
    async with await asyncio.start_server(on_connection, sock=bound):
        _, writer = await asyncio.open_connection(*bound.getsockname())
        assert await accepted
        writer.close()
        await writer.wait_closed()


@pytest.fixture
def root_logger() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_log_lines_are_json_with_their_fields(root_logger: object) -> None:
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    logging.getLogger("rota.test").info("shard %s loaded", 7, extra={"epoch": 3})
    logging.getLogger("rota.test").debug("unheard")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["message"], line["epoch"]) == ("info", "rota.test", "shard 7 loaded", 3)
    assert line["at"].endswith("Z")
