"""The host that a request names: in its header, in an absolute target, and in many requests of one caller."""

from __future__ import annotations

import pytest

from tests.http.both_ways import BEAT, Both, a_request, as_new, compare

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROUTE = "/v1/namespaces"


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


async def test_many_invented_names_cost_others_nothing(servers: Both) -> None:
    """An address is a name that every server accepts, so one caller can invent as many as it likes."""
    both = await as_new(servers)
    for number in range(300):
        invented = f"Host: 10.0.{number // 256}.{number % 256}"
        await both.fast.exchange(a_request(b"", invented, path="/healthz", method="GET"))
    both.fast.ordinary = 0

    _, fast = await compare(both, a_request(BEAT, "Host: 127.0.0.1:8080", "Content-Type: application/json"))

    assert fast == 1
