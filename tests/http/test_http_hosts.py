"""The host that a request names: in its header, and in an absolute target."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.http.both_ways import Both, a_request, scripted_both_ways

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROUTE = "/v1/namespaces"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[Both]:
    async with scripted_both_ways() as both:
        yield both


@pytest.mark.parametrize(
    ("target", "hosts", "status"),
    [
        ("http://localhost", ["localhost"], 200),
        ("http://localhost", ["evil.example"], 200),
        ("HTTPS://LOCALHOST:8443", ["evil.example"], 200),
        ("http://evil.example", ["localhost"], 403),
        ("http://evil.example:80", ["localhost"], 403),
        ("ftp://evil.example", ["localhost"], 403),
        ("http://user@localhost", ["localhost"], 400),
        ("http://a:b:c", ["localhost"], 400),
        ("http://", ["localhost"], 400),
        ("http://localhost", [], 400),
        ("http://localhost", ["localhost", "localhost"], 400),
        ("http://localhost", ["a b"], 400),
        ("", ["localhost"], 200),
        ("", ["evil.example"], 403),
        ("", ["localhost", "localhost"], 400),
        ("", [], 400),
    ],
)
async def test_the_host_of_an_absolute_target_counts(target: str, hosts: list[str], status: int, servers: Both) -> None:
    """RFC 9112 §3.2.2. A bad `Host` header is refused all the same."""
    headers = [f"Host: {host}" for host in hosts] or ["X: y"]

    answer = await servers.fast.exchange(a_request(b"", *headers, path=target + ROUTE, method="GET"))

    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("rest", ["", "?x"])
async def test_an_absolute_target_may_have_no_path(rest: str, servers: Both) -> None:
    path = f"http://localhost{rest}"

    answer = await servers.fast.exchange(a_request(b"", "Host: localhost", path=path, method="GET"))

    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"no such route: GET /" in answer
