"""Every route of a server, without and with rules, refuses what a browser sends for a page of another site."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from rota.server.bootstrap import Services, open_services
from rota.server.http.app import create_app
from rota.server.settings import Address, Settings
from tests.http.routes import routes_of
from tests.http.scripted import ScriptedCoordinator
from tests.http.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWN = "http://127.0.0.1:8080"
ANONYMOUS_READS = """
[[rules]]
name = "anonymous callers see everything"
subjects = ["anonymous"]
actions = ["viewer", "metrics", "member"]
"""
FOREIGN_PAGES = [
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"sec-fetch-site": "same-site"},
    {"origin": "http://evil.test"},
    {"origin": "null"},
]
REBOUND = {"host": "evil.test:8080", "origin": "http://evil.test:8080", "sec-fetch-site": "same-origin"}
PROBES = ("/healthz", "/readyz")
JOIN = "/v1/namespaces/default/groups/g/join"
COMMIT = "/v1/namespaces/default/groups/g/offsets"
OFFSETS = json.dumps({"generation_id": -1, "offsets": [{"topic": "t", "partition": 0, "offset": 1}]})


@asynccontextmanager
async def server(folder: Path, rules: str | None, *names: str) -> AsyncIterator[tuple[Services, httpx.AsyncClient]]:
    access = None
    if rules is not None:
        access = folder / "access.toml"
        access.write_text(rules)
    store = f"sqlite:///{folder / 'rota.db'}"
    settings = Settings(
        store=store, http=Address("127.0.0.1", 0), shard_count=4, access_file=access, allow_host=tuple(names)
    )
    async with open_services(settings, OWN) as services:
        await services.coordinator.wait_until_ready()
        transport = httpx.ASGITransport(services.api)
        async with httpx.AsyncClient(transport=transport, base_url=OWN, trust_env=False) as http:
            yield services, http


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Services, httpx.AsyncClient]]:
    async with server(tmp_path_factory.mktemp("open"), None) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Services, httpx.AsyncClient]]:
    async with server(tmp_path_factory.mktemp("guarded"), ANONYMOUS_READS) as made:
        yield made


def places_of(services: Services) -> list[tuple[str, str]]:
    """Each route of API and console with each of its methods, and paths that no route has."""
    found = [("POST", "/nowhere"), ("DELETE", "/"), ("PUT", "/healthz")]
    for route in routes_of(services.api.fastapi):
        path = route.path.replace(":path", "")
        for name in ("namespace", "group_id", "member_id", "topic", "partition", "action", "token_id", "name"):
            path = path.replace("{" + name + "}", {"action": "rebalance", "partition": "0"}.get(name, "g"))
        assert "{" not in path
        methods = route.methods or set()
        found += [(method, path) for method in (methods | {"HEAD"} if "GET" in methods else methods)]
    return found


async def statuses(
    http: httpx.AsyncClient, places: list[tuple[str, str]], headers: dict[str, str]
) -> dict[tuple[str, str], int]:
    """A stream that opens never ends, so it fails by the timeout."""
    async with asyncio.timeout(60):
        return {place: (await http.request(*place, headers=headers)).status_code for place in places}


@pytest.mark.parametrize("headers", FOREIGN_PAGES, ids=str)
async def test_a_foreign_page_reaches_no_open_route(
    open_server: tuple[Services, httpx.AsyncClient], headers: dict[str, str]
) -> None:
    services, http = open_server
    got = await statuses(http, places_of(services), headers)

    passed = {place for place, status in got.items() if status != 403}
    assert passed == {(method, path) for method in ("GET", "HEAD") for path in PROBES}


async def test_a_rebound_name_reaches_no_open_route(open_server: tuple[Services, httpx.AsyncClient]) -> None:
    services, http = open_server
    got = await statuses(http, places_of(services), REBOUND)

    passed = {place for place, status in got.items() if status != 403}
    assert passed == {(method, path) for method in ("GET", "HEAD") for path in PROBES}


@pytest.mark.parametrize("headers", FOREIGN_PAGES, ids=str)
async def test_a_foreign_page_writes_to_no_guarded_route(
    guarded: tuple[Services, httpx.AsyncClient], headers: dict[str, str]
) -> None:
    services, http = guarded
    writes = [place for place in places_of(services) if place[0] not in ("GET", "HEAD")]
    got = await statuses(http, writes, headers)

    assert set(got.values()) == {403}


@pytest.mark.parametrize("headers", [*FOREIGN_PAGES, REBOUND], ids=str)
async def test_rules_for_anonymous_mean_no_foreign_page(
    guarded: tuple[Services, httpx.AsyncClient], headers: dict[str, str]
) -> None:
    _, http = guarded
    for path in ("/v1/namespaces/default/groups", "/metrics", "/groups"):
        assert (await http.get(path)).status_code == 200
        assert (await http.get(path, headers=headers)).status_code == 401
        assert (await http.get(path, headers={**headers, "authorization": "Bearer x"})).status_code == 401
    assert (await http.get("/signin", headers=headers)).status_code == 200


@pytest.mark.parametrize("path", [COMMIT, JOIN])
@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_needs_the_type_of_json(
    open_server: tuple[Services, httpx.AsyncClient], path: str, content_type: str | None
) -> None:
    _, http = open_server
    headers = {} if content_type is None else {"content-type": content_type}

    assert (await http.post(path, content=OFFSETS, headers=headers)).status_code == 415


async def test_a_refusal_is_a_problem_that_is_counted(
    open_server: tuple[Services, httpx.AsyncClient], caplog: pytest.LogCaptureFixture
) -> None:
    _, http = open_server
    before = refusals((await http.get("/metrics")).text)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            answer = await http.get("/v1/namespaces/default/groups", headers={"host": "evil.test\\u001b"})
            answer = await http.get("/v1/namespaces/default/groups", headers={"host": "evil.test"})

    problem = answer.json()
    assert (problem["status"], problem["code"]) == (403, "GROUP_AUTHORIZATION_FAILED")
    assert "--allow-host" in problem["detail"]
    assert answer.headers["content-type"] == "application/problem+json"
    after = refusals((await http.get("/metrics")).text)
    assert after["foreign_host"] - before["foreign_host"] == 3
    assert after["malformed_host"] - before["malformed_host"] == 3
    assert sum("browser" in record.message for record in caplog.records) <= 1


def refusals(exposition: str) -> dict[str, float]:
    lines = [line for line in exposition.splitlines() if line.startswith("rota_browser_requests_refused_total{")]
    found = {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}
    return {"foreign_host": 0.0, "malformed_host": 0.0, **found}


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [
        ("1.1", [], 400),
        ("1.1", ["127.0.0.1", "127.0.0.1"], 400),
        ("1.1", ["127.0.0.1", "evil.test"], 400),
        ("1.1", ["evil.test"], 200),
        ("1.1", ["127.0.0.1"], 200),
        ("1.0", [], 200),
    ],
)
async def test_a_probe_passes_by_any_name_and_by_one(version: str, hosts: list[str], status: int) -> None:
    async with serving(create_app(ScriptedCoordinator())) as http:
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        head = [f"GET /healthz HTTP/{version}", "Connection: close", *(f"Host: {host}" for host in hosts)]
        writer.write("\r\n".join([*head, "", ""]).encode())
        answered = (await reader.readline()).split()[1]
        writer.close()
        await writer.wait_closed()

    assert int(answered) == status
