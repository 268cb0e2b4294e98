"""Whatever is sent, the answer is a 4xx problem with a code, and the coordinator never receives it."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest

from rota.server.http import connection
from tests.http.scripted import ScriptedCoordinator

pytestmark = pytest.mark.asyncio(loop_scope="module")

GROUP = "/v1/namespaces/default/groups/indexers"
JSON = {"content-type": "application/json"}
MIB = 1024 * 1024
TOO_LONG = b'{"member_id": "' + b"m" * (9 * MIB) + b'", "generation_id": 7}'

BAD_BODIES: list[tuple[str, str, bytes, int, str]] = [
    ("no JSON", "join", b"{", 400, "INVALID_REQUEST"),
    ("a list", "join", b"[]", 400, "INVALID_REQUEST"),
    ("nothing", "join", b"", 400, "INVALID_REQUEST"),
    ("nothing, heartbeat", "heartbeat", b"", 400, "INVALID_REQUEST"),
    ("not UTF-8", "join", b'{"protocol_type": "\xff"}', 400, "INVALID_REQUEST"),
    ("NaN", "heartbeat", b'{"member_id": "m", "generation_id": NaN}', 400, "INVALID_REQUEST"),
    ("Infinity", "heartbeat", b'{"member_id": "m", "generation_id": Infinity}', 400, "INVALID_REQUEST"),
    ("1e999", "heartbeat", b'{"member_id": "m", "generation_id": 1e999}', 400, "INVALID_REQUEST"),
    ("a fraction", "heartbeat", b'{"member_id": "m", "generation_id": 7.0}', 400, "INVALID_REQUEST"),
    ("true", "heartbeat", b'{"member_id": "m", "generation_id": true}', 400, "INVALID_REQUEST"),
    ("a text", "heartbeat", b'{"member_id": "m", "generation_id": "7"}', 400, "INVALID_REQUEST"),
    ("2^63", "heartbeat", b'{"member_id": "m", "generation_id": 9223372036854775808}', 400, "INVALID_REQUEST"),
    (
        "5,000 digits",
        "heartbeat",
        b'{"member_id": "m", "generation_id": ' + b"9" * 5_000 + b"}",
        400,
        "INVALID_REQUEST",
    ),
    ("deep lists", "join", b'{"protocols": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "INVALID_REQUEST"),
    ("deep objects", "heartbeat", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400, "INVALID_REQUEST"),
    ("a lone surrogate", "heartbeat", b'{"member_id": "\\ud800", "generation_id": 7}', 400, "INVALID_REQUEST"),
    ("NUL", "heartbeat", b'{"member_id": "\\u0000", "generation_id": 7}', 400, "INVALID_REQUEST"),
    ("a control character", "heartbeat", b'{"member_id": "\\u0007", "generation_id": 7}', 400, "INVALID_REQUEST"),
    ("right to left", "heartbeat", b'{"member_id": "a\\u202eb", "generation_id": 7}', 400, "INVALID_REQUEST"),
    ("a missing field", "heartbeat", b'{"member_id": "m"}', 400, "INVALID_REQUEST"),
    ("members of another kind", "heartbeat", b'{"members": {"member_id": "m"}}', 400, "INVALID_REQUEST"),
    ("a bad member of a batch", "heartbeat", b'{"members": [{"member_id": "m"}]}', 400, "INVALID_REQUEST"),
    ("a member id of 64 KiB", "heartbeat", b'{"member_id": "' + b"m" * 65_536 + b'"}', 400, "INVALID_REQUEST"),
    (
        "broken base64",
        "join",
        b'{"protocol_type": "w", "protocols": [{"name": "a", "metadata": "%%%"}]}',
        400,
        "INVALID_REQUEST",
    ),
    (
        "10,000 protocols",
        "join",
        json.dumps({"protocol_type": "w", "protocols": [{"name": f"p{n}"} for n in range(10_000)]}).encode(),
        413,
        "PAYLOAD_TOO_LARGE",
    ),
    (
        "metadata above its limit",
        "join",
        json.dumps({"protocol_type": "w", "protocols": [{"name": "a", "metadata": "A" * 100_000}]}).encode(),
        413,
        "PAYLOAD_TOO_LARGE",
    ),
    ("9 MiB", "heartbeat", TOO_LONG, 413, "PAYLOAD_TOO_LARGE"),
    ("9 MiB, the slow road", "sync", TOO_LONG, 413, "PAYLOAD_TOO_LARGE"),
    ("offsets of a bad topic", "offsets", b'{"offsets": [{"topic": "a b"}]}', 400, "INVALID_REQUEST"),
    ("no one to leave", "leave", b'{"members": [{}]}', 400, "INVALID_REQUEST"),
    ("a fence of nothing", "fence", b"{}", 400, "INVALID_REQUEST"),
]


def assert_refused(response: httpx.Response, status: int, code: str, scripted: ScriptedCoordinator) -> None:
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    assert scripted.requests == []


@pytest.mark.parametrize(
    ("path", "body", "status", "code"), [case[1:] for case in BAD_BODIES], ids=[case[0] for case in BAD_BODIES]
)
async def test_a_bad_body_is_refused(
    path: str, body: bytes, status: int, code: str, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    response = await client.post(f"{GROUP}/{path}", content=body, headers=JSON)
    assert_refused(response, status, code, scripted)


@pytest.mark.parametrize("path", ["heartbeat", "join"])
async def test_a_body_without_a_length_is_counted_while_it_arrives(
    path: str, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * MIB

    response = await client.post(f"{GROUP}/{path}", content=chunks(), headers=JSON)
    assert_refused(response, 413, "PAYLOAD_TOO_LARGE", scripted)


@pytest.mark.parametrize("path", ["heartbeat", "join"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_compressed_bodies_are_refused_unread(
    path: str, encoding: str, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    body = gzip.compress(b" " * 10 * MIB)
    response = await client.post(f"{GROUP}/{path}", content=body, headers={**JSON, "content-encoding": encoding})
    assert_refused(response, 415, "INVALID_REQUEST", scripted)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_what_a_foreign_web_page_may_send_is_refused(
    content_type: str, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    body = b'{"member_id": "m-1", "generation_id": 7}'
    response = await client.post(f"{GROUP}/heartbeat", content=body, headers={"content-type": content_type})
    assert_refused(response, 415, "INVALID_REQUEST", scripted)


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
async def test_json_may_be_called_by_its_other_names(content_type: str, client: httpx.AsyncClient) -> None:
    body = b'{"member_id": "m-1", "generation_id": 7}'
    response = await client.post(f"{GROUP}/heartbeat", content=body, headers={"content-type": content_type})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/namespaces/a:b/groups/g", 400, "INVALID_REQUEST"),
        ("GET", "/v1/namespaces/a/groups/g%20g", 400, "INVALID_GROUP_ID"),
        ("GET", "/v1/namespaces/a/groups/%00", 400, "INVALID_GROUP_ID"),
        ("GET", "/v1/namespaces/a/groups/%FF%FE", 400, "INVALID_GROUP_ID"),
        ("GET", f"/v1/namespaces/a/groups/{'g' * 250}", 400, "INVALID_GROUP_ID"),
        ("GET", "/v1/namespaces/a/topics/t%0A", 400, "INVALID_REQUEST"),
        ("GET", "/v1/namespaces/a/groups?page_token=nonsense!", 400, "INVALID_REQUEST"),
        ("GET", "/v1/namespaces/a/groups?page_size=0", 400, "INVALID_REQUEST"),
        ("GET", "/v1/namespaces/a/groups?page_size=1e3", 400, "INVALID_REQUEST"),
        ("GET", "/v1/namespaces/a/groups?states=%00", 400, "INVALID_REQUEST"),
        ("GET", "/v1/namespaces/a/groups/g/leader?wait_ms=-5", 400, "INVALID_REQUEST"),
        ("GET", "/v1/namespaces/a/groups/g/leader?after_generation=4294967296", 400, "INVALID_REQUEST"),
        ("GET", "/v1/namespaces/a/groups/g/offsets?topic=a", 400, "INVALID_REQUEST"),
        ("DELETE", "/v1/namespaces/a/groups/g/offsets", 400, "INVALID_REQUEST"),
        ("DELETE", "/v1/namespaces/a/groups/g/members/%01", 400, "INVALID_REQUEST"),
        ("GET", "/v1/events", 400, "INVALID_REQUEST"),
        ("GET", "/v1/events?shard=-2", 400, "INVALID_REQUEST"),
        ("GET", "/v1/nothing", 404, "INVALID_REQUEST"),
        ("GET", "/v1/namespaces/a/groups/", 404, "INVALID_REQUEST"),
        ("POST", "/v1/namespaces//groups/g/heartbeat", 404, "INVALID_REQUEST"),
        ("POST", "/v1/namespaces/a/groups/g%2Fh/heartbeat", 404, "INVALID_REQUEST"),
        ("POST", "/v1/namespaces/a/groups/g%20h/heartbeat", 400, "INVALID_GROUP_ID"),
        ("PATCH", "/v1/namespaces/a/groups/g", 405, "INVALID_REQUEST"),
        ("GET", "/v1/namespaces/a/groups/g/heartbeat", 405, "INVALID_REQUEST"),
        ("TRACE", "/healthz", 405, "INVALID_REQUEST"),
    ],
)
async def test_a_bad_path_or_query_is_refused(
    method: str, path: str, status: int, code: str, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    body = b'{"member_id": "m-1", "generation_id": 7}' if method == "POST" else None
    response = await client.request(method, path, content=body, headers=JSON if body else {})
    assert_refused(response, status, code, scripted)


async def test_404_names_the_method_and_the_path_on_one_short_line(client: httpx.AsyncClient) -> None:
    doubled = await client.post(f"/v1{GROUP}/join", content=b"{}", headers=JSON)
    hostile = await client.get("/v1/%0A%1b[31m" + "x" * 4_000)

    assert doubled.json()["detail"] == f"no such route: POST /v1{GROUP}/join"
    assert hostile.status_code == 404
    assert hostile.json()["detail"].startswith("no such route: GET /v1/\\n\\x1b[31mxxx")
    assert len(hostile.json()["detail"]) < 300


async def test_405_names_all_methods_of_the_route(client: httpx.AsyncClient) -> None:
    response = await client.patch(f"{GROUP}/offsets")
    assert {name.strip() for name in response.headers["allow"].split(",")} == {"GET", "HEAD", "POST", "DELETE"}


async def test_refusals_never_quote_what_was_sent(client: httpx.AsyncClient) -> None:
    marker = "ThisIsMySecret"
    bodies = [
        f'{{"member_id": "{marker}\\n", "generation_id": 1}}',
        f'{{"member_id": "{marker}", "generation_id": {marker}',
        f'{{"members": "{marker}"}}',
    ]
    for body in bodies:
        response = await client.post(f"{GROUP}/heartbeat", content=body.encode(), headers=JSON)
        assert response.status_code == 400
        assert marker not in response.text


# --- below HTTP clients ---------------------------------------------------------------------------


async def exchange(client: httpx.AsyncClient, *parts: bytes, close: bool = False) -> bytes:
    """Send bytes over a plain connection, and everything that comes back until the server closes it."""
    address = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if close:
            writer.write_eof()
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


def post(headers: bytes, body: bytes = b"", path: bytes = b"/v1/namespaces/a/groups/g/heartbeat") -> bytes:
    head = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return b"POST " + path + head + headers + b"\r\n\r\n" + body


HEARTBEAT = b'{"member_id": "m-1", "generation_id": 7}'
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HEARTBEAT), HEARTBEAT)

RAW: dict[str, tuple[bytes, int]] = {
    "both lengths": (post(b"Content-Length: 5\r\nTransfer-Encoding: chunked", CHUNKED), 400),
    "both lengths, the other order": (post(b"Transfer-Encoding: chunked\r\nContent-Length: 5", CHUNKED), 400),
    "two lengths": (post(b"Content-Length: 40\r\nContent-Length: 41", HEARTBEAT), 400),
    "a negative length": (post(b"Content-Length: -1", HEARTBEAT), 400),
    "a length of twenty digits": (post(b"Content-Length: 99999999999999999999", HEARTBEAT), 400),
    "a length with a plus": (post(b"Content-Length: +40", HEARTBEAT), 400),
    "10 GB that never come": (post(b"Content-Length: 10737418240", HEARTBEAT), 413),
    "a bad chunk size": (post(b"Transfer-Encoding: chunked", b"xyz\r\n"), 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "a space in the path": (post(b"Content-Length: 0", path=b"/v1 /x"), 400),
    "a header without a colon": (post(b"Broken header"), 400),
    "many headers": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"x: y\r\n" * 300 + b"\r\n", 431),
    "many headers of a heartbeat": (post(b"x: y\r\n" * 300 + b"Content-Length: 40", HEARTBEAT), 431),
    "many trailers": (post(b"Transfer-Encoding: chunked", CHUNKED[:-2] + b"x: y\r\n" * 300), 431),
    "headers without end": (b"GET / HTTP/1.1\r\n" + b"X-Y: " + b"z" * 70_000 + b"\r\n", 431),
    "a path without end": (b"GET /" + b"z" * 70_000, 431),
    "another method": (b"BREW /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
}


@pytest.mark.parametrize(("request_", "status"), RAW.values(), ids=RAW.keys())
async def test_broken_http_is_refused_and_closed(
    request_: bytes, status: int, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    answer = await exchange(client, request_)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status, answer
    assert json.loads(body)["status"] == status
    assert scripted.requests == []


async def test_as_many_headers_and_trailers_as_may_be_are_fine(client: httpx.AsyncClient) -> None:
    headers = b"x: y\r\n" * (connection.MAX_FIELDS - 4) + b"Transfer-Encoding: chunked"
    trailers = CHUNKED[:-2] + b"x: y\r\n" * connection.MAX_FIELDS + b"\r\n"
    assert (await exchange(client, post(headers, trailers))).startswith(b"HTTP/1.1 200")


async def test_headers_that_drip_are_cut_off(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_DEADLINE_SECONDS", 0.05)
    assert await exchange(client, b"GET /healthz HTTP/1.1\r\n", b"Host: localhost\r\n") == b""


async def test_a_caller_that_hangs_up_mid_body_disturbs_no_other(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    address = urlsplit(str(client.base_url))
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(post(b"Content-Length: 4000", HEARTBEAT))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await client.get("/healthz")).status_code == 200
    assert scripted.requests == []
