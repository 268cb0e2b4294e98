"""The console behind a guard: every page and action × every kind of user, and how a browser shows its identity."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from rota.core.access.rules import ROLES
from rota.core.access.sources import Proxies, parse_networks
from rota.server.console import sessions
from rota.server.console.app import GROUP_PATH, TOPIC_PATH
from rota.server.proxies import TrustedProxies
from tests.access.guarded import bearer
from tests.console.conftest import HOST
from tests.console.doors import GROUP, NAMESPACE, ROLES_HERE, SAME_ORIGIN, TOPIC, Doors, guarded
from tests.http.routes import routes_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORM = {"typed": GROUP, "note": "new machines"}
DESCRIBE, ADMINISTER, METRICS, NOTHING = "describe", "administer", "metrics", ""
PAGES = {
    ("GET", "/"): DESCRIBE,
    ("GET", "/groups"): DESCRIBE,
    ("GET", "/members"): DESCRIBE,
    ("GET", "/leaders"): DESCRIBE,
    ("GET", "/topics"): DESCRIBE,
    ("GET", TOPIC_PATH): DESCRIBE,
    ("GET", "/search"): DESCRIBE,
    ("GET", "/shards"): METRICS,
    ("GET", GROUP_PATH): DESCRIBE,
    ("GET", f"{GROUP_PATH}/leader"): DESCRIBE,
    ("GET", f"{GROUP_PATH}/offsets"): DESCRIBE,
    ("GET", f"{GROUP_PATH}/timeline"): DESCRIBE,
    ("GET", f"{GROUP_PATH}/journal.json"): DESCRIBE,
    ("GET", f"{GROUP_PATH}/live"): DESCRIBE,
    ("GET", f"{GROUP_PATH}/act/{{action}}"): DESCRIBE,
    ("POST", f"{GROUP_PATH}/act/{{action}}"): ADMINISTER,
    ("GET", "/access"): NOTHING,
    ("GET", "/docs"): NOTHING,
    ("GET", "/signin"): NOTHING,
    ("POST", "/signin"): NOTHING,
    ("POST", "/signout"): NOTHING,
    ("GET", "/static/{name}"): NOTHING,
}
"""What each route of the console asks for."""
OF_A_NAMESPACE = ("/groups", "/members", "/leaders", "/topics")
PASSED = {200, 303, 422}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def doors(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Doors]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sessions, "SIGN_INS_PER_S", 1_000)  # These tests sign in more often.
        async with guarded(tmp_path_factory.mktemp("guarded")) as doors:
            yield doors


def url_of(path: str) -> str:
    names = {"namespace": NAMESPACE, "group_id": GROUP, "topic": TOPIC}
    return path.format(**names, action="rebalance", name="console.css")


async def test_every_route_of_the_console_is_in_the_table(doors: Doors) -> None:
    routes = list(routes_of(doors.services.api.fastapi))
    of_console = [route for route in routes if route.endpoint.__module__ == "rota.server.console.app"]

    assert {(method, route.path) for route in of_console for method in (route.methods or set()) - {"HEAD"}} == set(
        PAGES
    )


@pytest.mark.parametrize("role", ["", *ROLES_HERE])
async def test_who_gets_in_where(doors: Doors, role: str) -> None:
    may, refused = {NOTHING, *(ROLES[role] if role else ())}, 403 if role else 401
    # The stream does not end, and signing out comes last: a request after it would be anonymous.
    asked = [place for place in PAGES if not place[1].endswith("/live")]

    got = {}
    async with doors.browser(role) as browser:
        for method, path in sorted(asked, key=lambda place: place[1] == "/signout"):
            url = url_of(path) + (f"?namespace={NAMESPACE}" if path in OF_A_NAMESPACE else "")
            answer = await browser.request(method, url, data=FORM if method == "POST" else None)
            got[(method, path)] = answer.status_code

    wrong = {
        place: status
        for place, status in got.items()
        if (status not in PASSED if PAGES[place] in may else status != refused)
    }
    assert wrong == {}


async def test_a_stream_of_changes_asks_first_who_listens(doors: Doors) -> None:
    async with doors.browser() as nobody:
        assert (await nobody.get(url_of(f"{GROUP_PATH}/live"))).status_code == httpx.codes.UNAUTHORIZED


async def test_a_refusal_names_the_missing_rule_and_the_sign_in_page(doors: Doors) -> None:
    async with doors.browser() as nobody, doors.browser("viewer") as viewer:
        asked = await nobody.get(url_of(GROUP_PATH))
        refused = await viewer.post(url_of(f"{GROUP_PATH}/act/{{action}}"), data=FORM)

    assert f'href="/signin?next=/groups/{NAMESPACE}/{GROUP}"' in asked.text
    assert "administer" in refused.text
    assert "token:viewer" in refused.text


@pytest.mark.parametrize(
    ("peer", "said", "is_for_tls_only"),
    [
        ("10.1.2.3", ["https"], True),
        ("::ffff:10.1.2.3", ["https"], True),
        ("2001:db8::7", ["HTTPS"], True),
        ("10.1.2.3", ["http"], False),
        ("10.1.2.3", ["https", "http"], False),
        ("192.0.2.9", ["https"], False),
    ],
)
async def test_the_cookie_is_for_tls_only_behind_a_trusted_proxy(
    doors: Doors, peer: str, said: list[str], is_for_tls_only: bool
) -> None:
    trusting = TrustedProxies(doors.services.api, Proxies(parse_networks("10.0.0.0/8, 2001:db8::/32")))
    headers = [*SAME_ORIGIN.items(), *(("x-forwarded-proto", scheme) for scheme in said)]

    async with httpx.AsyncClient(transport=httpx.ASGITransport(trusting, client=(peer, 4711)), base_url=HOST) as http:
        answer = await http.post("/signin", data={"token": doors.tokens["viewer"]}, headers=headers)
        page = await http.get(url_of(GROUP_PATH), headers={**bearer(doors.tokens["viewer"]), **dict(headers)})

    assert ("Secure" in answer.headers["set-cookie"].split("; ")) is is_for_tls_only
    assert (f"--url {HOST.replace('http:', 'https:')}" in page.text) is is_for_tls_only


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        (["/rota"], "/rota"),
        (["/a/rota.v1/"], "/a/rota.v1"),
        ([], "/"),
        (["/rota", "/rota"], "/"),
        (["//evil.test"], "/"),
        (["/../rota"], "/"),
        (["https://evil.test"], "/"),
        (['/rota"><script>'], "/"),
    ],
)
async def test_the_cookie_is_for_the_path_of_a_trusted_proxy(doors: Doors, sent: list[str], path: str) -> None:
    api = TrustedProxies(doors.services.api, Proxies(parse_networks("10.0.0.0/8")))
    transport = httpx.ASGITransport(api, client=("10.1.2.3", 40_000))
    headers = [*SAME_ORIGIN.items(), ("x-forwarded-proto", "https"), *(("x-forwarded-prefix", each) for each in sent)]
    async with httpx.AsyncClient(transport=transport, base_url=HOST, trust_env=False, headers=headers) as browser:
        signed_in = await browser.post("/signin", data={"token": doors.tokens["viewer"]})
        cookie = signed_in.headers["set-cookie"]
        page = await browser.get(url_of(GROUP_PATH), headers={"cookie": cookie.partition(";")[0]})

    assert f"Path={path}" in cookie.split("; ")
    assert cookie.startswith("__Host-" if path == "/" else "__Secure-")
    assert signed_in.headers["location"] == path.rstrip("/") + "/"
    assert "token:viewer" in page.text


@pytest.mark.parametrize("token", ["", "garbage", "rota_00000000_" + "0" * 38, "ü", "x" * 9_000])
async def test_what_is_no_token_lets_nobody_in(doors: Doors, token: str) -> None:
    async with doors.browser() as browser:
        answer = await browser.post("/signin", data={"token": token})

    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "set-cookie" not in answer.headers
    assert 'role="alert"' in answer.text


@pytest.mark.parametrize(
    ("wanted", "goes"),
    [
        ("/groups?q=a", "/groups?q=a"),
        ("https://evil.test/", "/"),
        ("//evil.test/", "/"),
        ("/\\evil.test", "/"),
        ("javascript:alert(1)", "/"),
        ("/\r\nset-cookie: a=b", "/"),
        ("groups", "/"),
    ],
)
async def test_signing_in_leads_to_a_page_of_ours(doors: Doors, wanted: str, goes: str) -> None:
    async with doors.browser() as browser:
        answer = await browser.post("/signin", data={"token": doors.tokens["viewer"], "next": wanted})

    assert answer.headers["location"] == goes
