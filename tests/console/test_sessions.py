"""The console's sessions: what the cookie is good for, what the store keeps of it, and what ends it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from rota.core.access.quotas import BURST_S
from rota.core.access.sessions import SESSION_MS, cookie_of, digest_of, new_session, secret_for, secret_of, token_of
from rota.core.access.sources import Proxies, parse_networks
from rota.core.access.tokens import RANDOM_BYTES, mint
from rota.protocol.messages import Act
from rota.server.console.entrance import COOKIE, COOKIE_OVER_TLS
from rota.server.console.sessions import SIGN_INS_PER_S, UNKNOWN_PER_S
from rota.server.proxies import TrustedProxies
from rota.storage.access import MOST_OF_A_CALLER, MOST_SESSIONS, TokenTable
from rota.storage.migrate import upgrade
from rota.storage.store import SqlStore
from tests.access.guarded import bearer
from tests.console.conftest import HOST
from tests.console.doors import GROUP, NAMESPACE, SAME_ORIGIN, Doors, guarded

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = f"/groups/{NAMESPACE}/{GROUP}"
CALL = f"/v1/namespaces/{NAMESPACE}/groups/{GROUP}"
SECRET = bytes(range(32))
NOW_MS = 1_000_000_000_000
SOON_S = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def doors(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Doors]:
    async with guarded(tmp_path_factory.mktemp("guarded")) as doors:
        yield doors


async def until(ready: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while True:
            if await ready():
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def with_cookie(doors: Doors, cookie: str, name: str = COOKIE) -> AsyncIterator[httpx.AsyncClient]:
    """A browser, or a thief, that has a cookie."""
    transport = httpx.ASGITransport(doors.services.api)
    headers = {**SAME_ORIGIN, "cookie": f"{name}={cookie}"}
    async with httpx.AsyncClient(transport=transport, base_url=HOST, trust_env=False, headers=headers) as http:
        yield http


async def test_the_cookie_is_no_token_and_no_credential_of_the_api(doors: Doors) -> None:
    async with doors.browser("admin") as browser:
        cookie = browser.cookies[COOKIE]
    shown = [
        bearer(cookie),
        {"cookie": f"{COOKIE}={cookie}"},
        {"authorization": cookie},
        {"authorization": f"Basic {cookie}"},
    ]
    async with with_cookie(doors, cookie) as thief:
        assert (await thief.get(PAGE)).status_code == 200
        assert doors.tokens["admin"] not in cookie
        for headers in shown:
            assert (await thief.get(CALL, headers=headers)).status_code == 401
            assert (await thief.post(f"{CALL}/rebalance", json={}, headers=headers)).status_code == 401


async def test_signing_out_ends_the_session_and_not_the_token(doors: Doors) -> None:
    async with doors.browser("viewer") as browser:
        cookie = browser.cookies[COOKIE]
        await browser.post("/signout")
        assert COOKIE not in browser.cookies
    async with with_cookie(doors, cookie) as thief:
        assert (await thief.get(PAGE)).status_code == 401
        assert (await thief.get(CALL, headers=bearer(doors.tokens["viewer"]))).status_code == 200


async def test_a_revoked_token_ends_its_sessions(doors: Doors) -> None:
    token_id, token = await doors.store("contractor", 90)
    async with doors.browser() as browser:

        async def signed_in() -> bool:
            return (await browser.post("/signin", data={"token": token})).status_code == 303

        await until(signed_in)
        assert (await browser.get(PAGE)).status_code == 200
        await TokenTable(doors.settings.store).revoke(token_id, int(time.time() * 1000), Act("shell:tests"))

        async def refused() -> bool:
            return (await browser.get(PAGE)).status_code == 401

        await until(refused)


@pytest.mark.parametrize(("age_ms", "status"), [(SESSION_MS - 60_000, 200), (SESSION_MS + 1, 401)])
async def test_a_session_ends_after_its_time(doors: Doors, age_ms: int, status: int) -> None:
    secret = age_ms.to_bytes(32, "big")
    began_ms = int(time.time() * 1000) - age_ms
    await doors.services.store.add_session(new_session(secret, doors.tokens["viewer"], began_ms), began_ms)
    async with with_cookie(doors, cookie_of(secret)) as browser:
        assert (await browser.get(PAGE)).status_code == status


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_an_open_page_ends_soon_after_its_session(doors: Doors, elsewhere: bool) -> None:
    """Signed out by this process, or by another one, that changed the store alone."""
    async with doors.browser("viewer") as browser:
        cookie = browser.cookies[COOKIE]
        secret = secret_of(cookie)
        assert secret is not None
        async with with_cookie(doors, cookie) as other:
            live = asyncio.create_task(other.get(f"{PAGE}/live"))
            await other.get(PAGE)
            if elsewhere:
                await doors.services.store.end_session(digest_of(secret))
            else:
                await browser.post("/signout")
            async with asyncio.timeout(SOON_S):
                seen = (await live).text

    assert "event: interrupted" in seen
    assert '"code":"UNAUTHENTICATED"' in seen.replace(" ", "")


async def test_over_tls_only_the_cookie_of_this_host_counts(doors: Doors) -> None:
    behind_tls = TrustedProxies(doors.services.api, Proxies(parse_networks("10.0.0.0/8")))
    transport = httpx.ASGITransport(behind_tls, client=("10.1.2.3", 4711))
    headers = {**SAME_ORIGIN, "x-forwarded-proto": "https"}
    async with httpx.AsyncClient(transport=transport, base_url=HOST, headers=headers) as http:
        answer = await http.post("/signin", data={"token": doors.tokens["viewer"]})
        shown = answer.headers["set-cookie"]
        cookie = shown.partition("=")[2].partition(";")[0]
        got = [
            (await http.get(PAGE, headers={"cookie": f"{name}={cookie}"})).status_code
            for name in (COOKIE_OVER_TLS, COOKIE)
        ]

    assert shown.startswith("__Host-")
    assert {"HttpOnly", "Path=/", "SameSite=strict", "Secure"} <= set(shown.split("; "))
    assert "domain" not in shown.lower()
    assert got == [200, 401]


@pytest.mark.parametrize("cookie", ["x", "x" * 43, "x" * 5_000, "rota_00000000_" + "0" * 38, "%00"])
async def test_a_made_up_cookie_is_nobodys(doors: Doors, cookie: str) -> None:
    async with with_cookie(doors, cookie) as thief:
        assert (await thief.get(PAGE)).status_code == 401


async def test_made_up_cookies_do_not_load_the_store(doors: Doors) -> None:
    async with doors.browser("viewer") as honest:
        assert (await honest.get(PAGE)).status_code == 200
        statuses = []
        for number in range(3 * UNKNOWN_PER_S):
            async with with_cookie(doors, cookie_of(number.to_bytes(32, "little"))) as thief:
                statuses.append((await thief.get("/signin")).status_code)
        assert (await honest.get(PAGE)).status_code == 200

    assert set(statuses) == {200, 429}


# --- a flood ------------------------------------------------------------------------------------------


async def rows(doors: Doors) -> int:
    with closing(sqlite3.connect(doors.settings.store.removeprefix("sqlite:///"))) as store:
        return int(store.execute("SELECT count(*) FROM console_sessions").fetchone()[0])


async def sign_ins(doors: Doors, role: str, count: int) -> list[int]:
    transport = httpx.ASGITransport(doors.services.api)
    async with httpx.AsyncClient(transport=transport, base_url=HOST, trust_env=False, headers=SAME_ORIGIN) as http:
        statuses = []
        for _ in range(count):
            http.cookies.clear()
            statuses.append((await http.post("/signin", data={"token": doors.tokens[role]})).status_code)
        return statuses


async def test_a_flood_of_sign_ins_is_few_writes_to_the_store(tmp_path: Path) -> None:
    """And another caller signs in all the while."""
    async with guarded(tmp_path / "flood") as doors:
        began = time.monotonic()
        done = await asyncio.gather(*(sign_ins(doors, "viewer", 50) for _ in range(8)), sign_ins(doors, "admin", 1))
        took_s = time.monotonic() - began
        written = await rows(doors)

    assert Counter(status for each in done[:-1] for status in each).keys() == {303, 429}
    assert done[-1] == [303]
    assert written <= 2 + 1 + SIGN_INS_PER_S * (BURST_S * 1.5 + took_s)


async def test_sign_ins_count_against_the_callers_quota(tmp_path: Path) -> None:
    """Those without a valid token against that of their address."""
    quotas = "".join(
        f'[[caller_quotas]]\nsubject = "{name}"\nrequests_per_s = 1\n' for name in ("token:viewer", "anonymous*")
    )
    async with guarded(tmp_path / "quotas", quotas) as doors:
        viewer = await sign_ins(doors, "viewer", 10)  # Fewer than all sign-ins of a moment.
        doors.tokens["nobody"] = mint(bytes(RANDOM_BYTES))
        nobody = await sign_ins(doors, "nobody", 40)
        admin = await sign_ins(doors, "admin", 5)

    assert (set(viewer), set(nobody), set(admin)) == ({303, 429}, {422, 429}, {303})


async def test_signing_out_without_a_session_writes_nothing(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also twice, and with a header that a session gives way to."""
    async with doors.browser("viewer") as browser:
        cookie = browser.cookies[COOKIE]
    ended = []
    end_session = type(doors.services.store).end_session

    async def counted(store: SqlStore, digest: str) -> None:
        ended.append(digest)
        await end_session(store, digest)

    monkeypatch.setattr(type(doors.services.store), "end_session", counted)
    for number in range(20):
        made_up = cookie_of(b"made up" + number.to_bytes(25, "little"))
        for shown in (cookie, made_up):
            async with with_cookie(doors, shown) as thief:
                await thief.post("/signout", headers=bearer("x") if number % 2 else {})

    secret = secret_of(cookie)
    assert secret is not None
    assert ended == [digest_of(secret)]


async def test_a_caller_keeps_no_other_from_signing_in(doors: Doors) -> None:
    """It has so many sessions at most, of which the oldest one ends; others are not touched."""
    store, now_ms = doors.services.store, int(time.time() * 1000)
    secrets = [secret_for("token:viewer", number.to_bytes(32, "big")) for number in range(MOST_OF_A_CALLER + 20)]
    async with doors.browser("admin") as admin:
        for age, secret in enumerate(secrets):
            await store.add_session(new_session(secret, doors.tokens["viewer"], now_ms + age), now_ms)
        kept = [await store.read_session(digest_of(secret)) is not None for secret in secrets]

        assert kept == [False] * 20 + [True] * MOST_OF_A_CALLER
        assert (await admin.get("/shards")).status_code == 200


async def test_the_table_never_keeps_a_caller_out(doors: Doors) -> None:
    """Full of sessions of many callers, it drops the oldest one."""
    now_ms = int(time.time() * 1000)
    many = [new_session(secret_for(str(n), n.to_bytes(32, "big")), "t", now_ms - n) for n in range(MOST_SESSIONS)]
    with closing(sqlite3.connect(doors.settings.store.removeprefix("sqlite:///"))) as store, store:
        store.executemany(
            "INSERT INTO console_sessions VALUES (?, ?, ?)",
            [(each.digest, each.sealed, each.expires_at_ms) for each in many],
        )

    async with doors.browser("admin") as admin:
        assert (await admin.get("/shards")).status_code == 200

    assert await rows(doors) == MOST_SESSIONS
    assert await doors.services.store.read_session(many[-1].digest) is None
    assert await doors.services.store.read_session(many[0].digest) is not None


# --- the store and other replicas --------------------------------------------------------------------


async def test_a_session_counts_and_ends_at_every_replica(postgres_dsn: str, tmp_path: Path) -> None:
    await upgrade(postgres_dsn)
    async with guarded(tmp_path / "a", store=postgres_dsn) as one, guarded(tmp_path / "b", store=postgres_dsn) as other:
        async with one.browser("admin") as browser, with_cookie(other, browser.cookies[COOKIE]) as same_browser:
            assert (await same_browser.get("/shards")).status_code == 200
            assert (await same_browser.post("/signout")).status_code == 303

            async def signed_out() -> bool:
                return (await browser.get("/shards")).status_code == 401

            await until(signed_out)


async def test_the_store_keeps_neither_cookie_nor_token(doors: Doors) -> None:
    async with doors.browser("viewer") as browser:
        cookie = browser.cookies[COOKIE]
    secret = secret_of(cookie)
    assert secret is not None
    record = await doors.services.store.read_session(digest_of(secret))

    assert record is not None
    assert cookie not in repr(record)
    assert doors.tokens["viewer"] not in repr(record)
    assert token_of(secret, record) == doors.tokens["viewer"]


async def test_only_the_cookie_opens_a_session() -> None:
    record = new_session(SECRET, "rota_secret", NOW_MS)
    other = bytes(reversed(SECRET))
    changed = type(record)(record.digest, new_session(other, "rota_secret", NOW_MS).sealed, record.expires_at_ms)

    assert token_of(SECRET, record) == "rota_secret"
    assert token_of(other, record) is None
    assert token_of(SECRET, changed) is None
    assert secret_of(cookie_of(SECRET)) == SECRET
    assert digest_of(SECRET) not in cookie_of(SECRET)
