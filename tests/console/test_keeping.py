"""The pages of an operator: whose tokens there are and how one is taken back, and how near namespaces are to
their quotas.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.access.guarded import bearer
from tests.console.conftest import Site
from tests.console.doors import GROUP, NAMESPACE, Doors, guarded

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUOTAS = f"""
[[quotas]]
namespace = "{NAMESPACE}"
max_groups = 10
max_members = 4
requests_per_s = 100

[[quotas]]
namespace = "team-b"
max_parked = 7
"""
HOUR_MS = 3_600_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def doors(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Doors]:
    async with guarded(tmp_path_factory.mktemp("guarded"), QUOTAS) as doors:
        yield doors


# --- tokens -----------------------------------------------------------------------------------------


async def test_tokens_are_listed_with_rights_and_end_without_secrets(doors: Doors) -> None:
    soon_ms = int(time.time() * 1000) + HOUR_MS
    token_id, text = await doors.store("nightly", 1, expires_at_ms=soon_ms)
    await doors.store("gone", 2, revoked_at_ms=1)
    await doors.services.store.note_token_uses({token_id: 1_700_000_000_000})

    async with doors.browser("admin") as browser:
        page = (await browser.get("/tokens")).text

    (line,) = re.findall(rf"<tr><th scope=\"row\">nightly.*?{token_id}.*?</tr>", page, re.DOTALL)
    assert f"describe in {NAMESPACE}, groups index*" in line
    assert "in 59 min" in line or "in 1 h" in line
    assert 'data-at="1700000000000"' in line
    assert f'href="/tokens/{token_id}/revoke"' in line
    assert page.index("nightly") < page.index(">gone ")
    assert text.split("_")[2] not in page
    record = next(one for one in await doors.services.store.read_tokens() if one.token_id == token_id)
    assert record.digest not in page


async def test_a_revoked_token_is_rejected_from_then_on(doors: Doors) -> None:
    token_id, text = await doors.store("leaked", 3)
    path = f"/tokens/{token_id}/revoke"
    calls = doors.http.build_request("GET", f"/v1/namespaces/{NAMESPACE}/groups/{GROUP}", headers=bearer(text))
    await until_answered(doors.http, calls, httpx.codes.OK)

    async with doors.browser("admin") as browser:
        asked = await browser.get(path)
        mistyped = await browser.post(path, data={"typed": "leak", "note": "it was in a log"})
        without_note = await browser.post(path, data={"typed": "leaked", "note": " "})
        still_good = (await doors.http.send(calls)).status_code
        done = await browser.post(path, data={"typed": "leaked", "note": "it was in a log"})
        page = (await browser.get(done.headers["location"])).text
        again = await browser.get(path)

    assert f"rota token revoke {token_id}" in asked.text
    assert "Type the token&#39;s name, leaked" in mistyped.text
    assert "Say why" in without_note.text
    assert (mistyped.status_code, without_note.status_code, still_good) == (422, 422, 200)
    assert "The token is revoked." in page
    assert f'href="{path}"' not in page
    assert "It is revoked already" in again.text
    await until_answered(doors.http, calls, httpx.codes.UNAUTHORIZED)
    (reported,) = re.findall(rf"<td>Revoke</td><td>leaked .*?{token_id}.*?</tr>", page, re.DOTALL)
    assert ["token:admin" in reported, "127.0.0.1" in reported, "it was in a log" in reported] == [True, True, True]


async def test_tokens_history_is_read_over_http_by_journal_readers(doors: Doors) -> None:
    token_id, _ = await doors.store("read-over-http", 6)
    path = "/v1/events?shard=-1&limit=1000"

    read = await doors.http.get(path, headers=bearer(doors.tokens["admin"]))
    refused = await doors.http.get(path, headers=bearer(doors.tokens["viewer"]))

    (line,) = (event for event in read.json()["events"] if token_id in event["payload"]["target"])
    assert (line["kind"], line["payload"]["operation"]) == ("administered", "CreateToken")
    assert line["payload"]["actor"] == "shell:tests"
    assert refused.status_code == httpx.codes.FORBIDDEN


async def test_another_site_revokes_nothing(doors: Doors) -> None:
    token_id, _ = await doors.store("kept", 4)

    async with doors.browser("admin") as browser:
        fields = {"typed": "kept", "note": "evil"}
        answer = await browser.post(f"/tokens/{token_id}/revoke", data=fields, headers={"sec-fetch-site": "cross-site"})

    assert answer.status_code == httpx.codes.FORBIDDEN
    assert {one.token_id: one.revoked_at_ms for one in await doors.services.store.read_tokens()}[token_id] is None


async def test_a_token_that_is_not_there_is_said_to_be_none(doors: Doors) -> None:
    async with doors.browser("admin") as browser:
        answer = await browser.get("/tokens/0000000000/revoke")

    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert "there is no such token" in answer.text


async def test_without_identities_there_are_no_tokens_to_see(site: Site) -> None:
    seen = await site.http.get("/tokens")
    sent = await site.send("/tokens/0000000000/revoke", {"typed": "x", "note": "y"})

    assert (seen.status_code, sent.status_code) == (403, 403)
    assert 'href="/tokens"' not in await site.page("/")


# --- the caller's own access --------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["viewer", "admin"])
async def test_the_caller_sees_its_subject_rules_and_roles(doors: Doors, role: str) -> None:
    async with doors.browser(role) as browser:
        page = (await browser.get("/access")).text

    assert re.search(rf"You are <b>token:{role}</b>", page)
    assert f"<td>{role}</td>" in page


async def test_a_visitor_without_a_token_sees_that_no_rule_applies(doors: Doors) -> None:
    async with doors.browser() as browser:
        page = (await browser.get("/access")).text

    assert "You are not signed in" in page
    assert "No rule applies to you" in page


async def test_without_rules_the_page_of_access_says_so(site: Site) -> None:
    assert "every caller may do everything" in await site.page("/access")


# --- quotas -----------------------------------------------------------------------------------------


async def test_a_namespace_is_shown_beside_its_quota(doors: Doors) -> None:
    async with doors.browser("viewer") as browser:
        page = (await browser.get("/quotas")).text

    assert {"1 of 10", "1 of 4"} <= {" ".join(text.split()) for text in re.findall(r"beat\">([^<]*)<", page)}
    assert re.search(r"\d+ of 200, 100 a second", page)
    assert page.count("no limit") == 2
    assert "team-b" not in page


async def test_viewers_of_all_namespaces_see_empty_ones_too(doors: Doors) -> None:
    async with doors.browser("admin") as browser:
        page = (await browser.get("/quotas")).text

    assert "0 of 7" in page
    assert page.index("team-a") < page.index("team-b")


async def test_a_namespaces_usage_is_hidden_from_partial_viewers(doors: Doors) -> None:
    _, text = await doors.store("narrow", 5)

    asked = doors.http.build_request("GET", "/quotas", headers=bearer(text))
    answer = await until_answered(doors.http, asked, httpx.codes.FORBIDDEN)

    assert "no rule allows it" in answer.text


async def test_without_quotas_the_page_says_so(site: Site) -> None:
    assert "There are no quotas" in await site.page("/quotas")


async def until_answered(http: httpx.AsyncClient, request: httpx.Request, status: int) -> httpx.Response:
    """Ask until the answer is this one: the server looks at the store's tokens every two seconds."""
    async with asyncio.timeout(20):
        while (answer := await http.send(request)).status_code != status:  # noqa: ASYNC110 - a look has no event
            await asyncio.sleep(0.05)
    return answer
