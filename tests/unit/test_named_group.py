"""The group of a request, by its bytes: certain, or none."""

from __future__ import annotations

import pytest

from rota.api.http.named_group import named_group
from rota.wire.routes import ROUTES

HEADERS = b"Host: h\r\nContent-Length: 2\r\n\r\n"
GROUP = b"/v1/namespaces/n.s/groups/g:1"
_GROUPS = "/v1/namespaces/{namespace}/groups/{group_id}"


@pytest.mark.parametrize("rest", [b"", b"{", b"{}", b"{}POST / HTTP/1.1\r\n\r\n"])
@pytest.mark.parametrize(
    "line", [b"POST %b/heartbeat", b"GET %b", b"GET %b?x=/", b"DELETE %b/members/m%%2F1", b"GET %b/"]
)
def test_a_request_for_a_group_names_it(line: bytes, rest: bytes) -> None:
    assert named_group(line % GROUP + b" HTTP/1.1\r\n" + HEADERS + rest) == ("n.s", "g:1")


@pytest.mark.parametrize(
    "received",
    [
        b"",
        b"\x16\x03\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HEADERS,
        b"GET /v1/namespaces/n/groups HTTP/1.1\r\n" + HEADERS,
        b"GET /v1/namespaces/n/groups/ HTTP/1.1\r\n" + HEADERS,
        b"GET /v1/namespaces/n/topics/t HTTP/1.1\r\n" + HEADERS,
        b"GET /v1/namespaces/%6e/groups/g HTTP/1.1\r\n" + HEADERS,
        b"GET /v1/namespaces/n/groups/" + b"g" * 250 + b" HTTP/1.1\r\n" + HEADERS,
        b"GET http://h" + GROUP + b" HTTP/1.1\r\n" + HEADERS,
        b"GET " + GROUP + b"/a b HTTP/1.1\r\n" + HEADERS,
        b"GET " + GROUP + b" HTTP/1.0\r\n" + HEADERS,
        b"get " + GROUP + b" HTTP/1.1\r\n" + HEADERS,
        b"\r\nGET " + GROUP + b" HTTP/1.1\r\n" + HEADERS,
        b"GET / HTTP/1.1\r\n\r\nGET " + GROUP + b" HTTP/1.1\r\n" + HEADERS,
        *((b"POST " + GROUP + b"/join HTTP/1.1\r\n" + HEADERS)[:size] for size in (10, 50, 60, 78)),
    ],
)
def test_any_other_bytes_name_none(received: bytes) -> None:
    assert named_group(received) is None


def test_each_call_of_a_group_is_known() -> None:
    of_groups = [route for route in ROUTES.values() if route.path.startswith(_GROUPS)]
    assert of_groups
    for route in of_groups:
        path = route.path.format(namespace="n", group_id="g", member_id="m")
        assert named_group(f"{route.method} {path} HTTP/1.1\r\n\r\n".encode()) == ("n", "g"), route
