"""The console in a real browser against a live service: live, accessible, small, by keyboard, and under its policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from tests.console.scene import CANDIDATES, PAGES, SHORT_SESSION_MS, WORKERS, Scene, scene_in
from tests.processes.server import Server
from tests.support.browser import open_browser
from tests.support.processes import Processes

pytestmark = [pytest.mark.thorough, pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

# A busy machine is slow, and not wrong.
expect.set_options(timeout=60_000)
Scheme = Literal["light", "dark"]
SMALL, LARGE = (360, 740), (1180, 800)
_WIDTH_BEYOND_THE_SCREEN = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_REMEMBER_BREACHES = """
window.breaches = [];
document.addEventListener("securitypolicyviolation", (event) => window.breaches.push(event.violatedDirective));
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    for made in scene_in(tmp_path_factory.mktemp("scene")):
        made.open()
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


@asynccontextmanager
async def page_of(
    browser: Browser, url: str, scheme: Scheme = "light", size: tuple[int, int] = LARGE, *, own_time: bool = False
) -> AsyncIterator[Page]:
    """A page in a browser without a past. What a page breaks or complains of fails the test.

    With `own_time` the page's clock can be put forward.
    """
    context = await browser.new_context(color_scheme=scheme, viewport={"width": size[0], "height": size[1]})
    await context.add_init_script(_REMEMBER_BREACHES)
    page = await context.new_page()
    if own_time:
        await page.clock.install()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        await page.goto(url)
        yield page
        assert errors == []
        assert await page.evaluate("window.breaches") == []
    finally:
        await context.close()


async def violations(page: Page) -> list[str]:
    """What axe finds, each with the first element that it is about."""
    found: Any = await Axe().run(page)
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found.response["violations"]]


# --- live ---------------------------------------------------------------------------------------------


async def test_an_open_page_shows_a_killed_member_without_a_reload(browser: Browser, scene: Scene) -> None:
    scene.add(WORKERS, "indexer-9", SHORT_SESSION_MS)
    scene.until_stable(WORKERS, 3)
    async with page_of(browser, scene.url + PAGES["group"]) as page:
        rows = page.locator("table.members tbody tr")
        await expect(rows).to_have_count(3)
        await page.evaluate("window.loadedOnce = true")
        before = int(await page.locator("#generation").inner_text())

        scene.kill("indexer-9")

        await expect(rows).to_have_count(2)
        await expect(page.locator("#state")).to_have_text("Stable")
        await expect(page.locator(".story .member_expired .went").first).to_contain_text("indexer-9")
        assert int(await page.locator("#generation").inner_text()) > before
        assert await page.evaluate("window.loadedOnce") is True


@pytest.mark.slow
@pytest.mark.parametrize("silence", ["killed", "frozen"])
async def test_sessions_pause_while_the_server_is_silent(
    browser: Browser, processes: Processes, tmp_path: Path, silence: str
) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    server.start_and_wait()
    join_for_long(server.url)
    async with page_of(browser, f"{server.url}/groups/default/patient", own_time=True) as page:
        at_first = await sessions(page)
        await page.clock.run_for(2_000)
        assert await sessions(page) != at_first

        if silence == "killed":
            server.process.kill9()
        else:
            server.process.pause()
        await page.clock.run_for(15_000)
        await expect(page.locator("#lost")).to_be_visible()
        reported_last = await sessions(page)
        await page.clock.run_for(60_000)
        assert await sessions(page) == reported_last

        if silence == "killed":
            server.start_and_wait()
        else:
            server.process.resume()
        await expect(page.locator("#lost")).to_be_hidden()
        await expect(page.locator("meter")).not_to_have_js_property("value", reported_last[0])


@pytest.mark.slow
async def test_a_proxys_answer_for_a_lost_server_replaces_no_page(browser: Browser, scene: Scene) -> None:
    async with page_of(browser, scene.url + PAGES["group"], own_time=True) as page:
        away = {"status": 502, "content_type": "text/html", "body": "<h1>502 Bad Gateway</h1>"}
        await page.route(f"**{PAGES['group']}", lambda route: route.fulfill(**away))

        await page.clock.run_for(4_000)

        await expect(page.locator("#lost")).to_be_visible()
        await expect(page.locator("table.members tbody tr").first).to_be_visible()
        await page.unroute(f"**{PAGES['group']}")
        await expect(page.locator("#lost")).to_be_hidden()


def join_for_long(url: str) -> None:
    """One member of a group, with a session that is long enough to be looked at."""
    joining = {"protocol_type": "work", "protocols": [{"name": "p"}], "session_timeout_ms": 600_000}
    with httpx.Client(base_url=f"{url}/v1/namespaces/default/groups/patient/", trust_env=False) as http:
        joined = http.post("join", json={**joining, "group_instance_id": "i", "wait_ms": 20_000}).raise_for_status()
        member = {name: joined.json()[name] for name in ("member_id", "generation_id")}
        http.post("sync", json={**member, "assignments": []}).raise_for_status()


async def sessions(page: Page) -> list[float | str]:
    """What the page shows of the first session: its bar, and how long it is said to last."""
    shown: list[float | str] = await page.evaluate(
        "[document.querySelector('meter').value, document.querySelector('[data-left]').textContent]"
    )
    return shown


# --- for every user -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("name", [name for name in PAGES if name != "missing"])
async def test_no_page_keeps_anybody_out(
    browser: Browser, scene: Scene, name: str, size: tuple[int, int], scheme: Scheme
) -> None:
    async with page_of(browser, scene.url + PAGES[name], scheme, size) as page:
        assert await violations(page) == []


async def test_nothing_is_wider_than_a_small_screen(browser: Browser, scene: Scene) -> None:
    async with page_of(browser, scene.url, size=SMALL) as page:
        for name, path in PAGES.items():
            await page.goto(scene.url + path)

            assert await page.evaluate(_WIDTH_BEYOND_THE_SCREEN) == 0, name


async def test_the_way_to_a_group_by_keyboard_alone(browser: Browser, scene: Scene) -> None:
    async with page_of(browser, scene.url) as page:
        await page.keyboard.press("Tab")
        await expect(page.locator(".skip")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#main")).to_be_focused()
        await page.keyboard.press("g")
        await page.keyboard.press("g")
        await page.wait_for_url("**/groups")
        await page.keyboard.press("/")
        await expect(page.locator("#search")).to_be_focused()
        await page.keyboard.type(WORKERS)
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/groups?namespace=default&q={WORKERS}*")
        await page.keyboard.press("j")
        await expect(page.locator(".row-link").first).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text(WORKERS)
        await page.keyboard.press("?")
        await expect(page.locator("#keys")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator("#keys")).to_be_hidden()


@pytest.mark.slow
async def test_focus_stays_where_it_is_while_a_page_refreshes(browser: Browser, scene: Scene) -> None:
    async with page_of(browser, scene.url + "/groups") as page:
        link = page.locator(".row-link").nth(1)
        await link.focus()
        async with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true"):
            pass

        await expect(link).to_be_focused()


# --- acting -------------------------------------------------------------------------------------------


async def test_a_leader_is_made_to_step_down_by_who_means_it(browser: Browser, scene: Scene) -> None:
    before = scene.until_stable(CANDIDATES, 2)
    async with page_of(browser, scene.url + PAGES["leader"]) as page:
        await expect(page.locator("#holder-name code")).to_have_attribute("title", str(before["leader_id"]))
        await page.get_by_role("link", name="Step down").click()
        await page.get_by_label("to confirm").fill("something else")
        await page.get_by_label("Why?").fill("its machine goes away")
        await page.get_by_role("button", name="Step down").click()
        await expect(page.get_by_role("alert")).to_contain_text("Type the group's name")

        await page.get_by_label("to confirm").fill(CANDIDATES)
        await page.get_by_role("button", name="Step down").click()

        await expect(page.locator(".notice")).to_have_text("The leader was asked to step down.")
        # The hand-over may be the latest chapter by now.
        asked = page.locator("#how + .story .reason").filter(has_text="its machine goes away")
        await expect(asked.first).to_be_visible()
    after = scene.until_stable(CANDIDATES, 2)
    assert after["leader_id"] != before["leader_id"]
    assert {member["member_id"] for member in _members(after)} == {member["member_id"] for member in _members(before)}


def _members(group: dict[str, object]) -> list[dict[str, str]]:
    members: Any = group["members"]
    return list(members)
