"""The samples of reverse proxies carry what Rota needs: long polls, events as they come, gRPC and its streams."""

from __future__ import annotations

import asyncio
import html
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest

import rota
from rota.protocol.limits import MAX_WAIT_MS
from rota.v1 import coordinator_pb2 as pb
from tests.client.stage import TOPICS, all_partitions_are_shared
from tests.deploy.proxies import SAMPLES, Proxy
from tests.grpc.clients import stub
from tests.support.ports import free_port
from tests.support.processes import Processes
from tests.support.relay import carry

pytestmark = pytest.mark.processes

PROXIES = ("nginx", *(pytest.param(name, marks=pytest.mark.slow) for name in ("caddy", "haproxy")))
READ_TIMEOUTS = {
    "nginx.conf": r"proxy_read_timeout (\d+)s;",
    "haproxy.cfg": r"timeout server (\d+)s\n",
    "Caddyfile": r"read_timeout (\d+)s\n",
}


@dataclass(frozen=True, slots=True)
class Server:
    """`rota serve` with both transports, where proxies find it."""

    http: int
    grpc: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    found, processes = Server(free_port(), free_port()), Processes(folder)
    process = processes.rota(
        *("serve", "--store", f"sqlite:///{folder}/rota.db", "--shard-count", "4"),
        *("--http", f"127.0.0.1:{found.http}", "--grpc", f"127.0.0.1:{found.grpc}"),
        *("--trusted-proxies", "127.0.0.1"),
        env={"ROTA_LIMITS__INITIAL_REBALANCE_DELAY_MS": "20"},
    )
    process.wait_for_url(f"http://127.0.0.1:{found.http}/readyz")
    yield found
    processes.close()


@pytest.mark.parametrize(("sample", "pattern"), READ_TIMEOUTS.items())
def test_a_proxy_waits_longer_than_the_longest_poll(sample: str, pattern: str) -> None:
    """And not longer than Rota keeps an idle connection, so that neither meets one that the other has closed."""
    seconds = [int(found) for found in re.findall(pattern, (SAMPLES / sample).read_text())]

    assert seconds
    assert all(MAX_WAIT_MS / 1000 + 10 < each <= 75 for each in seconds)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROXIES)
async def test_members_work_through_a_proxy_over_http_and_grpc(
    name: str, server: Server, processes: Processes, tmp_path: Path
) -> None:
    proxy = Proxy(name, processes, tmp_path, http=server.http, grpc=server.grpc)
    urls = (f"http://127.0.0.1:{proxy.http}", f"grpc://127.0.0.1:{proxy.grpc}", f"grpc+stream://127.0.0.1:{proxy.grpc}")

    async with asyncio.timeout(30), rota.connect(urls[0]) as one, rota.connect(urls[1]) as two:
        async with rota.connect(urls[2]) as three:
            members = [client.consumer(name, TOPICS, session_timeout=60.0) for client in (one, two, three)]
            async with members[0], members[1], members[2]:
                await all_partitions_are_shared(members)


METRICS = ("/metrics", "/%6detrics", "/%6D%65trics", "/metrics?x=1", "/metrics%3fx", "/%2fmetrics", "//metrics")
ABSOLUTE = "http://x/%6detrics"


@pytest.mark.parametrize("name", PROXIES)
async def test_no_spelling_of_the_metrics_passes_a_proxy(
    name: str, server: Server, processes: Processes, tmp_path: Path
) -> None:
    proxy = Proxy(name, processes, tmp_path, http=server.http, grpc=server.grpc)

    answers = {path: await answer_to_a_line(proxy.http, path) for path in (*METRICS, ABSOLUTE, "/healthz", "/")}

    assert [path for path, answer in answers.items() if answer.startswith(b"HTTP/1.1 200")] == ["/healthz", "/"]
    assert not any(b"rota_" in answers[path] for path in (*METRICS, ABSOLUTE))


async def answer_to_a_line(port: int, path: str) -> bytes:
    """The answer to a path that no client library has touched."""
    return await answer_to(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())


async def answer_to(port: int, request: bytes, source: str = "127.0.0.1") -> bytes:
    """All that comes back until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        writer.write(request)
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("name", PROXIES)
async def test_a_refusal_passes_a_proxy_with_its_status(
    name: str, server: Server, processes: Processes, tmp_path: Path
) -> None:
    """It has a status and no message, which a proxy that flushes too early makes an answer without either.

    Where that befalls a first join, its id is lost, and its group waits for a member that will never come.
    """
    proxy = Proxy(name, processes, tmp_path, http=server.http, grpc=server.grpc)
    unknown = pb.HeartbeatRequest(namespace="default", group_id=f"refused-by-{name}", member_id="m", generation_id=1)
    said = Counter[grpc.StatusCode]()

    async with asyncio.timeout(30), grpc.aio.insecure_channel(f"127.0.0.1:{proxy.grpc}") as channel:
        heartbeat = stub(channel).Heartbeat
        for _ in range(200):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await heartbeat(unknown, wait_for_ready=True)
            said[refused.value.code()] += 1

    assert said == {grpc.StatusCode.NOT_FOUND: 200}


@pytest.mark.parametrize("name", PROXIES)
async def test_events_pass_a_proxy_as_they_come_and_a_poll_waits_in_it(
    name: str, server: Server, processes: Processes, tmp_path: Path
) -> None:
    proxy = Proxy(name, processes, tmp_path, http=server.http, grpc=server.grpc)
    url = f"http://127.0.0.1:{proxy.http}/v1/namespaces/default/groups/events-by-{name}"

    async with asyncio.timeout(30), httpx.AsyncClient(trust_env=False, timeout=30) as client:
        async with client.stream("GET", f"{url}/events") as events:
            lines = events.aiter_lines()
            member = await a_leader(client, url)
            # The stream is still open: a proxy that waited for its end, or for a full buffer, would have shown nothing.
            while '"kind":"assignment_synced"' not in await anext(lines):
                pass
        waited = await client.post(f"{url}/heartbeat", json={**member, "wait_ms": 1_500})

    assert (waited.status_code, waited.elapsed.total_seconds() >= 1.4) == (200, True)


@pytest.mark.parametrize("name", PROXIES)
async def test_a_proxy_says_where_a_member_is(name: str, server: Server, processes: Processes, tmp_path: Path) -> None:
    proxy = Proxy(name, processes, tmp_path, http=server.http, grpc=server.grpc)
    url = f"http://127.0.0.1:{proxy.http}/v1/namespaces/default/groups/told-by-{name}"
    elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.2", retries=20)

    async with asyncio.timeout(30), httpx.AsyncClient(transport=elsewhere, timeout=30) as client:
        await a_leader(client, url)
        described = (await client.get(url)).json()

    assert [member["host"] for member in described["members"]] == ["127.0.0.2"]


FOREIGN = "203.0.113.9"
FORGED = {
    "X-Forwarded-For": FOREIGN,
    "X-Real-IP": FOREIGN,
    "True-Client-IP": FOREIGN,
    "Forwarded": f"for={FOREIGN}",
    "X-Forwarded-Host": FOREIGN,
}
"""Headers by which a caller may claim to come from another address."""
JOIN = b'{"protocol_type": "leader", "protocols": [{"name": "single"}], "group_instance_id": "i", "client_id": "c"}'


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize("place", ["header", "trailer"])
async def test_no_header_or_trailer_forges_a_source_through_a_proxy(
    place: str, name: str, server: Server, processes: Processes, tmp_path: Path
) -> None:
    proxy = Proxy(name, processes, tmp_path, http=server.http, grpc=server.grpc)
    group = f"forged-by-{place}-through-{name}"
    forged = "".join(f"{header}: {value}\r\n" for header, value in FORGED.items())
    headers, trailers = (forged, "") if place == "header" else ("Trailer: X-Forwarded-For\r\n", forged)
    request = (
        f"POST /v1/namespaces/default/groups/{group}/join HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n{headers}\r\n"
        f"{len(JOIN):x}\r\n{JOIN.decode()}\r\n0\r\n{trailers}\r\n"
    )

    answer = await answer_to(proxy.http, request.encode(), "127.0.0.2")

    # A proxy may refuse trailers as well.
    joined = answer.startswith(b"HTTP/1.1 200")
    assert joined or place == "trailer", answer
    assert await hosts_of_members(server, group) == ["127.0.0.2"] * joined


@pytest.mark.parametrize("name", PROXIES)
async def test_no_metadata_forges_a_source_through_a_proxy(
    name: str, server: Server, processes: Processes, tmp_path: Path
) -> None:
    proxy = Proxy(name, processes, tmp_path, http=server.http, grpc=server.grpc)
    group = f"forged-by-metadata-through-{name}"
    join = pb.JoinGroupRequest(namespace="default", group_id=group, protocol_type="leader", group_instance_id="i")
    join.protocols.add(name="single")
    forged = tuple((header.lower(), value) for header, value in FORGED.items())

    async with asyncio.timeout(30), from_elsewhere(proxy.grpc) as port:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await stub(channel).JoinGroup(join, metadata=forged, wait_for_ready=True)

    assert await hosts_of_members(server, group) == ["127.0.0.2"]


@asynccontextmanager
async def from_elsewhere(port: int) -> AsyncIterator[int]:
    """Another port, whose connections reach the given one from 127.0.0.2: no option of gRPC says where from."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await carry("127.0.0.1", port, reader, writer, source="127.0.0.2")

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as relay:
        yield relay.sockets[0].getsockname()[1]


async def hosts_of_members(server: Server, group: str) -> list[str]:
    """Where the server believes that a group's members are; empty for a group that it does not know."""
    async with httpx.AsyncClient(trust_env=False) as client:
        described = await client.get(f"http://127.0.0.1:{server.http}/v1/namespaces/default/groups/{group}")
    return [member["host"] for member in described.json().get("members", ())]


async def a_leader(client: httpx.AsyncClient, url: str) -> dict[str, object]:
    """One static member that leads a Stable group."""
    join = {"protocol_type": "leader", "protocols": [{"name": "single"}], "group_instance_id": "i"}
    joined = (await client.post(f"{url}/join", json={**join, "session_timeout_ms": 60_000})).json()
    member = {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
    assert (await client.post(f"{url}/sync", json=member)).status_code == 200
    return member


BELOW = "/rota"
LINKS = re.compile(r'(?:href|src|action|hx-get|hx-sse:connect)="([^"]*)"')


def below_a_path(sample: str) -> str:
    """As a comment in the sample says."""
    below = "location /rota/ {\n            proxy_pass http://rota_http/;"
    sample = sample.replace("location / {\n            proxy_pass http://rota_http;", below)
    return sample.replace('X-Forwarded-Prefix ""', f"X-Forwarded-Prefix {BELOW}")


async def test_the_console_works_below_a_path(server: Server, processes: Processes, tmp_path: Path) -> None:
    """Each link and file of each page stays below it, and is there."""
    proxy = Proxy("nginx", processes, tmp_path, http=server.http, grpc=server.grpc, edit=below_a_path)
    site = f"http://127.0.0.1:{proxy.http}"
    group = f"{BELOW}/groups/default/below"

    async with asyncio.timeout(60), httpx.AsyncClient(base_url=site, trust_env=False, timeout=30) as client:
        await a_leader(client, f"{BELOW}/v1/namespaces/default/groups/below")
        await client.put(f"{BELOW}/v1/namespaces/default/topics/documents", json={"partitions": 2})
        seen, open_links = dict[str, int](), [f"{BELOW}/", f"{BELOW}/search?q=b", f"{BELOW}/topics"]
        while open_links:
            link = open_links.pop()
            if link in seen or link.endswith(("/live", "/metrics")):
                continue
            page = await client.get(link)
            seen[link] = page.status_code
            if page.headers["content-type"].startswith("text/html"):
                found = [html.unescape(each) for each in LINKS.findall(page.text)]
                open_links += [str(page.url.join(each).raw_path, "ascii") for each in found if not each.startswith("#")]
        async with client.stream("GET", f"{group}/live") as live:
            opened = live.status_code
        form = {"typed": "below", "note": "new machines"}
        acted = await client.post(f"{group}/act/rebalance", data=form, headers={"sec-fetch-site": "same-origin"})
        why = (await client.get(group)).text
        document = await client.get(f"{BELOW}/openapi.json")

    assert {link: status for link, status in seen.items() if not link.startswith(f"{BELOW}/") or status != 200} == {}
    assert len(seen) > 30
    assert (opened, acted.status_code, acted.headers["location"]) == (200, 303, f"{group}?done=rebalance")
    assert f"rota --url {site}{BELOW} groups why below" in why
    assert str(document.url.join(document.json()["servers"][0]["url"])) == f"{site}{BELOW}/"
