"""A path in an address is a prefix, as behind a reverse proxy; where it is wrong, the error names it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

import rota
from rota.client import Client, InvalidRequest
from rota.client.transports.http import HttpTransport
from rota.core.access.browsers import Site
from rota.server.http.app import create_app
from tests.contracts.transports import LIMITS, a_coordinator, a_door

DEADLINE_S = 60


@asynccontextmanager
async def behind_a_proxy(prefix: str) -> AsyncIterator[httpx.ASGITransport]:
    """A coordinator below a prefix, which is cut off before a request reaches it."""
    async with a_coordinator() as coordinator:
        api = create_app(coordinator, LIMITS, site=Site(names=frozenset({"gateway.example"})))

        async def without_prefix(scope: Scope, receive: Receive, send: Send) -> None:
            await api({**scope, "path": scope["path"].removeprefix(prefix), "root_path": ""}, receive, send)

        yield httpx.ASGITransport(Starlette(routes=[Mount(prefix, without_prefix)]))


async def test_a_member_works_behind_a_proxy_that_cuts_a_prefix_off() -> None:
    async with asyncio.timeout(DEADLINE_S), behind_a_proxy("/rota") as inner:
        transport = HttpTransport(["http://gateway.example/rota/"], inner=inner)
        async with Client(transport) as client, client.consumer("g", {"t": 2}) as consumer:
            assigned = await consumer.wait_assigned()

    assert len(assigned.share) == 2


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/rota"])
async def test_a_missing_path_of_the_server_is_named_with_the_address(path: str) -> None:
    async with asyncio.timeout(DEADLINE_S), a_door("http") as url, rota.connect(url + path) as client:
        with pytest.raises(InvalidRequest) as ended:
            async with client.consumer("g", {"t": 2}) as consumer:
                await consumer.wait_assigned()

    given = path.rstrip("/")
    assert str(ended.value).endswith(
        f"no such route: POST {given}/v1/namespaces/default/groups/g/join at {url}{given};"
        f" is the path {given!r} in the address right? Without a proxy the address is {url}"
    )


@pytest.mark.parametrize("url", ["http://host?x=1", "https://host/rota?", "http://host/#here", "http://host#"])
def test_an_address_without_room_for_a_path_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="it must have no"):
        rota.connect(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("grpc://host:9090/v1", "without a path"),
        ("grpcs://host/rota/", "without a path"),
        ("grpc+stream://host:9090/v1?leave_after_ms=0", "without a path"),
        ("grpc://host:9090#here", "without a path"),
        ("grpc://host:9090?leave_after_ms=0", "only grpc"),
    ],
)
def test_an_ignored_part_of_a_grpc_address_is_rejected(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rota.connect(url)


@pytest.mark.parametrize("host", ["a..b", "ä..b", "xn--", "256.1.1.1", "[v1.x]", "a" * 64])
def test_a_host_that_no_server_can_have_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="its host is neither a name nor an address"):
        rota.connect(f"http://{host}:80")
