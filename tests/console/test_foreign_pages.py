"""Pages of another site in a real browser, against servers and a sidecar on the machine of their visitor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.console.keeper import Keeper, keeper_in
from tests.processes.server import Server
from tests.support.browser import open_browser
from tests.support.processes import Processes

pytestmark = [pytest.mark.thorough, pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

EVIL = "evil.test"
"""Resolves to loopback: a site of its own, and a rebound name."""
ATTACKS = {
    "an ArrayBuffer": "body => fetch(URL, {method: 'POST', mode: 'no-cors', body: new TextEncoder().encode(body)})",
    "an untyped Blob": "body => fetch(URL, {method: 'POST', mode: 'no-cors', body: new Blob([body])})",
    "text": "body => fetch(URL, {method: 'POST', mode: 'no-cors', body})",
    "a beacon": "async body => navigator.sendBeacon(URL, new TextEncoder().encode(body))",
    "JSON": "body => fetch(URL, {method: 'POST', body, headers: {'content-type': 'application/json'}})",
    "DELETE": "() => fetch(GROUP, {method: 'DELETE'})",
}
SAME_ORIGIN_CALL = "([path, options]) => fetch(path, options).then(async got => [got.status, await got.text()])"
OFFSETS = '{"generation_id": -1, "offsets": [{"topic": "t", "partition": 0, "offset": 7}]}'
KEPT = '{"generation_id": -1, "offsets": [{"topic": "kept", "partition": 0, "offset": 1}]}'
GROUP = "/v1/namespaces/default/groups/victim"


class EmptyPage(BaseHTTPRequestHandler):
    """The attacker's site: a page without content or policy."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """The browser's own report is enough."""


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """The port of the attacker's site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("victim")
    processes = Processes(folder)
    try:
        server = Server(processes, f"sqlite:///{folder / 'rota.db'}")
        server.start_and_wait()
        headers = {"content-type": "application/json"}
        httpx.post(f"{server.url}{GROUP}/offsets", content=KEPT, headers=headers, trust_env=False).raise_for_status()
        yield server
    finally:
        processes.close()


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    for made in keeper_in(tmp_path_factory.mktemp("keeper")):
        made.open()
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """It may reach loopback without asking its user, as every browser may from a page on loopback."""
    rules = (f"--host-resolver-rules=MAP {EVIL} 127.0.0.1", "--disable-features=LocalNetworkAccessChecks")
    async with open_browser(*rules) as opened:
        yield opened


@asynccontextmanager
async def page_at(browser: Browser, url: str) -> AsyncIterator[Page]:
    context = await browser.new_context()
    try:
        page = await context.new_page()
        await page.goto(url)
        yield page
    finally:
        await context.close()


def offsets_of(server: Server) -> str:
    return httpx.get(f"{server.url}{GROUP}/offsets", trust_env=False).text


async def attack(page: Page, url: str, name: str) -> None:
    """Send one; the page cannot read the answer, and may see the request fail."""
    script = ATTACKS[name].replace("URL", f"'{url}{GROUP}/offsets'").replace("GROUP", f"'{url}{GROUP}'")
    await page.evaluate(f"body => Promise.resolve(({script})(body)).then(() => 0, () => 0)", OFFSETS)


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_foreign_page_writes_nothing(browser: Browser, site: int, victim: Server, name: str) -> None:
    before = offsets_of(victim)
    async with page_at(browser, f"http://{EVIL}:{site}/") as page:
        await attack(page, victim.url, name)
        # A beacon is sent in the background; what follows it on the same machine is answered after it.
        await page.evaluate(f"() => fetch('{victim.url}/healthz', {{mode: 'no-cors'}}).then(() => 0, () => 0)")

    assert "kept" in before
    assert offsets_of(victim) == before


async def test_a_rebound_name_reads_and_deletes_nothing(browser: Browser, victim: Server) -> None:
    before = offsets_of(victim)
    async with page_at(browser, f"http://{EVIL}:{victim.port}/healthz") as page:
        got = [
            await page.evaluate(SAME_ORIGIN_CALL, [path, options])
            for path, options in (
                ("/v1/namespaces/default/groups", {}),
                (GROUP, {"method": "DELETE"}),
                ("/groups", {}),
                (
                    f"{GROUP}/offsets",
                    {"method": "POST", "body": OFFSETS, "headers": {"content-type": "application/json"}},
                ),
            )
        ]

    assert [status for status, _ in got] == [403] * 4
    assert not any("victim" in text for _, text in got)
    assert offsets_of(victim) == before
