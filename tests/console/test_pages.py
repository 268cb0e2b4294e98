"""What the pages say, and what the server refuses whatever a page would have allowed."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from rota.core.group import describe
from rota.server.bootstrap import open_services
from rota.server.console import group
from rota.server.console.entrance import PAGE_HEADERS
from rota.server.console.rendering import static_file
from rota.server.settings import Address, Settings
from tests.console.conftest import HOST, Site

pytestmark = pytest.mark.asyncio(loop_scope="module")

INLINE_OR_FROM_ELSEWHERE = re.compile(r"<script(?! src=\"/static/)|<style|\sstyle=|\son\w+=|https?://(?!rota\.test)")
SHARE = json.dumps({"topics": {"documents": [0, 1, 2], "audit": [7]}}).encode()


# --- pages --------------------------------------------------------------------------------------------


async def test_the_overview_counts_groups_and_names_those_in_trouble(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "STUCK_MS", -1)
    member_id = await site.stable("calm")
    await site.stable("busy")
    await site.join("busy", wait_ms=0)

    text = await site.page("/")

    assert f'href="/groups?namespace={site.namespace}"' in text
    assert f'href="{site.path("busy")}"' in text
    assert f'href="{site.path("calm")}"' not in text
    assert "It has rebalanced for" in text
    assert "<code>rota groups remove-member busy" in text
    assert member_id not in text


async def test_a_group_explains_itself_with_members_and_shares(site: Site) -> None:
    member_id = await site.stable("indexers", share=SHARE)

    text = await site.page(site.path("indexers"))

    assert "Stable for" in text
    assert f'title="{member_id}"' in text
    assert "audit 7 · documents 0-2" in text
    assert text.count("<rect") == 4 + 4  # the states of the machine, and the units on the map
    assert 'class="node lit calm"' in text
    assert "its fencing token is 1048576, of generation 1" in text


async def test_of_a_large_group_the_notable_members_are_shown(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "MOST_MEMBERS_SHOWN", 1)
    old_id = await site.stable("crowd")
    others = [await site.join("crowd", client_id=f"new-{number}", wait_ms=0) for number in range(2)]

    text, whole = await site.page(site.path("crowd")), await site.page(site.path("crowd") + "?show_all")
    of_leader = await site.page(site.path("crowd", "leader"))

    assert text.count('aria-label="Evict') == 1
    assert f"Evict {old_id}" in text
    assert f'{site.path("crowd")}?show_all">Show all 3</a>' in text
    assert whole.count('aria-label="Evict') == len(others) + 1
    assert "Show all" not in whole
    assert "and 1 more" in of_leader


async def test_a_share_in_many_pieces_is_bounded_and_complete(site: Site) -> None:
    numbers = list(range(0, 400, 2))
    member_id = await site.stable("indexers", share=json.dumps({"topics": {"documents": numbers}}).encode())

    text = await site.page(site.path("indexers"))

    everything = f"documents {', '.join(map(str, numbers))}"
    assert f'<div class="long" role="group" aria-label="What {member_id} holds" tabindex="0">{everything}</div>' in text


@pytest.mark.parametrize("name", ["leader", "timeline"])
async def test_a_group_named_like_a_page_has_one_page_at_a_time(site: Site, name: str) -> None:
    await site.stable(name)

    for page in ((), ("leader",), ("timeline",)):
        tabs = (await site.page(site.path(name, *page))).partition('class="tabs"')[2].partition("</nav>")[0]
        assert tabs.count('aria-current="page"') == 1


async def test_a_group_that_does_not_exist_is_reported_in_words(site: Site) -> None:
    answer = await site.http.get(site.path("mistyped"))

    assert answer.status_code == httpx.codes.NOT_FOUND
    assert answer.text.count("GROUP_ID_NOT_FOUND") == 2  # in the title, and beside the words
    assert "Its name may be mistyped" in answer.text


async def test_the_api_describes_operations_with_working_commands(site: Site) -> None:
    text = await site.page("/docs")
    document = (await site.http.get("/openapi.json")).json()

    named = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert re.findall(r'<details class="panel call" id="(\w+)">', text) != []
    assert set(re.findall(r'<details class="panel call" id="(\w+)">', text)) == set(named)
    assert "/openapi.json" in text
    assert "A tenant: nothing of two namespaces ever meets." in text
    assert f"curl -s {HOST}/v1/namespaces/default/groups" in text


async def test_a_page_that_is_open_gets_only_what_is_inside_of_it(site: Site) -> None:
    await site.stable("indexers")

    part = await site.page(site.path("indexers"), **{"hx-request": "true"})

    assert "<html" not in part
    assert part.lstrip().startswith("<nav")


async def test_the_list_is_filtered_searched_and_sorted_by_its_url(site: Site) -> None:
    for name in ("t2", "t10", "other"):
        await site.stable(name)
    await site.ask("empty", "offsets", offsets=[{"topic": "t", "partition": 0, "offset": 1}])
    base = f"/groups?namespace={site.namespace}"

    def listed(text: str) -> list[str]:
        return re.findall(rf'class="row-link" href="/groups/{site.namespace}/([^"]+)"', text)

    assert listed(await site.page(base)) == ["other", "t10", "t2", "empty"]
    assert listed(await site.page(f"{base}&q=T1")) == ["t10"]
    assert listed(await site.page(f"{base}&state=Empty")) == ["empty"]
    assert listed(await site.page(f"{base}&sort=-group")) == ["t2", "t10", "other", "empty"]
    assert listed(await site.page(f"{base}&type=worker")) == []
    assert listed(await site.page(f"{base}&sort=nonsense&page=x&state=Nonsense")) == ["other", "t10", "t2", "empty"]


async def test_the_timeline_names_members_with_every_line(site: Site) -> None:
    first = await site.stable("indexers")
    await site.http.delete(f"/v1/namespaces/{site.namespace}/groups/indexers/members/{first}?reason=it+hangs")

    text = await site.page(site.path("indexers", "timeline"))
    journal = (await site.http.get(site.path("indexers", "journal.json"))).json()

    assert "was removed" in text
    assert "it hangs" in text
    kinds = [event["kind"] for event in journal["events"]]
    assert kinds[0] == "group_emptied"
    assert {"member_joined", "generation_completed", "member_removed"} <= set(kinds)
    assert journal["events"][0].keys() >= {"revision", "at_ms", "reason", "payload"}


async def test_an_embedded_stores_shards_are_owned_without_leases(tmp_path: Path) -> None:
    store = tmp_path / "rota.db"
    settings = Settings(store=f"sqlite:///{store}", http=Address("127.0.0.1", 0), shard_count=4)
    async with open_services(settings, HOST) as services:
        await services.coordinator.wait_until_ready()
        with closing(sqlite3.connect(store, timeout=30)) as connection, connection:
            connection.execute("UPDATE shards SET lease_until_ms = 1")
        transport = httpx.ASGITransport(services.api)
        async with httpx.AsyncClient(transport=transport, base_url=HOST, trust_env=False) as http:
            text = await Site(http, "default").page("/shards")

    assert "All 4 shards are owned by 1 replica." in text


async def test_what_a_client_says_of_itself_is_text_and_never_markup(site: Site) -> None:
    await site.stable("indexers", client_id='<script>alert("x")</script>')

    for page in ("", "/leader", "/timeline"):
        text = await site.page(site.path("indexers") + page)
        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text


async def test_commands_to_copy_are_quoted_for_a_shell(site: Site) -> None:
    await site.stable("indexers")

    text = await site.page(site.path("indexers"))

    assert f"rota --url {HOST} --namespace {site.namespace} groups why indexers" in text
    assert f"curl -s {HOST}/v1/namespaces/{site.namespace}/groups/indexers" in text


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("/groups/default/nothing", 404),
        ("/groups/default/nothing/live", 404),
        ("/groups/default/no%20group", 400),
        ("/groups?namespace=a:b", 400),
        ("/groups/default/nothing/act/steal", 400),
        ("/static/../app.py", 404),
        ("/static/nothing.js", 404),
    ],
)
async def test_what_is_not_there_has_a_page_that_says_so(site: Site, url: str, status: int) -> None:
    answer = await site.http.get(url)

    assert answer.status_code == status


# --- safety -------------------------------------------------------------------------------------------


async def test_every_page_forbids_scripts_and_styles_that_are_not_ours(site: Site) -> None:
    await site.stable("indexers")
    pages = ["/", "/groups", "/shards", "/groups/default/nothing"]
    pages += [site.path("indexers", *more) for more in ((), ("leader",), ("timeline",), ("act", "rebalance"))]

    for url in pages:
        answer = await site.http.get(url)
        assert {name: answer.headers[name] for name in PAGE_HEADERS} == PAGE_HEADERS, url
        assert INLINE_OR_FROM_ELSEWHERE.findall(answer.text) == [], url


async def test_files_are_cached_under_names_that_change_with_them(site: Site) -> None:
    text = await site.page("/")
    (url,) = re.findall(r'href="(/static/console\.css\?v=\w+)"', text)

    answer = await site.http.get(url)

    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/css")
    assert "Zero-Clause BSD" in str(static_file("htmx.LICENSE.txt"))


FORM = {"typed": "indexers", "note": "new machines"}


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.test"},
        {"origin": "null"},
        {},
    ],
)
async def test_a_form_from_elsewhere_does_nothing(site: Site, headers: dict[str, str]) -> None:
    await site.stable("indexers")

    answer = await site.http.post(site.path("indexers", "act", "rebalance"), data=FORM, headers=headers)

    assert answer.status_code == httpx.codes.FORBIDDEN
    assert "Stable for" in await site.page(site.path("indexers"))


async def test_a_browser_that_only_names_its_origin_may_send_a_form(site: Site) -> None:
    await site.stable("indexers")

    answer = await site.http.post(site.path("indexers", "act", "rebalance"), data=FORM, headers={"origin": HOST})

    assert answer.status_code == httpx.codes.SEE_OTHER


# --- actions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"typed": "indexer", "note": "why not"}, "to confirm"),
        ({"typed": "indexers", "note": "  "}, "Say why"),
        ({"typed": "indexers", "note": "x" * 501}, "at most 500 characters"),
        ({}, "to confirm"),
    ],
)
async def test_who_does_not_mean_it_or_says_nothing_is_asked_again(
    site: Site, fields: dict[str, str], complaint: str
) -> None:
    await site.stable("indexers")

    answer = await site.send(site.path("indexers", "act", "rebalance"), fields)

    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert complaint in answer.text


async def test_a_forced_rebalance_keeps_the_note_in_the_journal(site: Site) -> None:
    await site.stable("indexers")

    done = await site.send(site.path("indexers", "act", "rebalance"), FORM)

    assert done.headers["location"] == f"{site.path('indexers')}?done=rebalance"
    text = await site.page(done.headers["location"])
    assert "The rebalance is under way." in text
    assert "a rebalance was asked for: new machines" in text


async def test_a_leader_steps_down_only_where_somebody_could_follow(site: Site) -> None:
    await site.stable("indexers")

    alone = await site.page(site.path("indexers", "act", "step-down"))

    assert "Not now: no other member could lead." in alone
    assert '<form method="post"' not in alone


async def test_an_evicted_member_is_gone_and_cannot_be_evicted_again(site: Site) -> None:
    member_id = await site.stable("indexers")
    fields = {**FORM, "member": member_id, "note": "it hangs"}
    url = site.path("indexers", "act", "evict")

    asked = await site.page(f"{url}?member={member_id}")
    done = await site.send(url, fields)
    again = await site.send(url, fields)

    assert f'value="{member_id}"' in asked
    assert done.status_code == httpx.codes.SEE_OTHER
    assert (again.status_code, "UNKNOWN_MEMBER_ID" in again.text) == (422, True)
    assert "it hangs" in await site.page(site.path("indexers", "timeline"))


async def test_only_an_empty_group_is_deleted_and_then_it_has_no_page(site: Site) -> None:
    await site.stable("indexers")
    url = site.path("indexers", "act", "delete")

    refused = await site.send(url, FORM)
    member_id = (await site.http.get(f"/v1/namespaces/{site.namespace}/groups/indexers")).json()["leader_id"]
    await site.ask("indexers", "leave", members=[{"member_id": member_id}])
    done = await site.send(url, FORM)

    assert "NON_EMPTY_GROUP" in refused.text
    assert done.headers["location"] == f"/groups?namespace={site.namespace}"
    gone = await site.http.get(site.path("indexers"))
    assert (gone.status_code, "deleted on request: new machines" in gone.text) == (httpx.codes.GONE, True)


async def test_a_form_without_end_is_refused(site: Site) -> None:
    await site.stable("indexers")

    answer = await site.send(site.path("indexers", "act", "rebalance"), {**FORM, "note": "x" * 20_000})

    assert answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE
