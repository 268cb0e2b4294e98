"""Pages across groups: topics, offsets, members, leaders, the search, and the timeline page by page."""

from __future__ import annotations

import json
import re
from base64 import b64encode

import pytest

from rota.server.console import group
from rota.server.console.drawing import WIDTH, axis_of
from rota.server.observability.generations import Generation
from tests.console.conftest import Site

pytestmark = pytest.mark.asyncio(loop_scope="module")

OLDER = re.compile(r"before=(\d+)\" rel=\"next\"")
SHARE = json.dumps({"topics": {"documents": [0, 1]}}).encode()


async def put_topic(site: Site, name: str, partitions: int) -> None:
    url = f"/v1/namespaces/{site.namespace}/topics/{name}"
    assert (await site.http.put(url, json={"partitions": partitions})).is_success


async def commit(site: Site, group_id: str, member_id: str, **offsets: int) -> None:
    named = [{"topic": "documents", "partition": int(name[1:]), "offset": offset} for name, offset in offsets.items()]
    answer = await site.ask(group_id, "offsets", member_id=member_id, generation_id=1, offsets=named)
    assert "code" not in answer, answer


async def test_the_topics_of_a_namespace_are_searched_and_paged(site: Site) -> None:
    for number in range(60):
        await put_topic(site, f"topic-{number:02}", number + 1)

    first = await site.page(f"/topics?namespace={site.namespace}")
    second = await site.page(f"/topics?namespace={site.namespace}&page=2")
    found = await site.page(f"/topics?namespace={site.namespace}&q=PIC-07")

    assert (first.count('class="row-link"'), second.count('class="row-link"')) == (50, 10)
    assert "page 1 of 2" in first
    assert "1 of 60 topics" in found


async def test_a_topic_shows_how_far_each_group_is(site: Site) -> None:
    await put_topic(site, "documents", 2)
    for group_id, offset in (("fast", 30), ("slow", 12)):
        member_id = await subscribed(site, group_id)
        await commit(site, group_id, member_id, p0=offset)

    text = await site.page(f"/topics/{site.namespace}/documents")

    assert f'href="/groups/{site.namespace}/fast"' in text
    assert ">18 behind<" in text  # slow: 30 - 12
    assert ">0 behind<" in text


async def subscribed(site: Site, group_id: str) -> str:
    """A Stable group with one member that subscribes to `documents` and holds both partitions."""
    metadata = b64encode(json.dumps({"topics": ["documents"]}).encode()).decode()
    protocols = [{"name": "server:range", "metadata": metadata}]
    joined = await site.join(group_id, protocols=protocols)
    sync = await site.ask(group_id, "sync", member_id=joined["member_id"], generation_id=1, wait_ms=5_000)
    assert "code" not in sync, sync
    return str(joined["member_id"])


async def test_a_group_shows_its_offsets_with_their_members(site: Site) -> None:
    member_id = await site.stable("indexers", share=SHARE)
    await commit(site, "indexers", member_id, p1=41)

    text = await site.page(site.path("indexers", "offsets"))

    assert "2 partitions" in text
    assert '<td class="n">41</td>' in text
    assert text.count(f'title="{member_id}"') == 2
    assert text.count("never") == 1


async def test_members_of_all_groups_are_listed_by_process(site: Site) -> None:
    await site.stable("indexers", client_id="host-a")
    await site.stable("audits", client_id="host-b")

    text = await site.page(f"/members?namespace={site.namespace}")
    found = await site.page(f"/members?namespace={site.namespace}&q=HOST-B")

    assert "2 of 2 members" in text
    assert "1 of 2 members" in found
    assert site.path("audits") in found
    assert site.path("indexers") not in found


async def test_the_search_finds_groups_and_topics_everywhere(site: Site) -> None:
    await site.stable("needle-group")
    other = Site(site.http, f"{site.namespace}-b")
    await put_topic(other, "needle-topic", 1)

    text = await site.page("/search?q=NEEDLE")
    nothing = await site.page("/search?q=no-such-name")

    assert f'href="{site.path("needle-group")}"' in text
    assert f'href="/topics/{site.namespace}-b/needle-topic"' in text
    assert "No group or topic that you may read" in nothing


async def test_the_timeline_leaves_out_commits_and_is_paged(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_LINES", 2)
    member_id = await site.stable("indexers", share=SHARE)
    for offset in range(3):
        await commit(site, "indexers", member_id, p0=offset)

    latest = await site.page(site.path("indexers", "timeline"))
    with_commits = await site.page(site.path("indexers", "timeline?commits=1"))
    page, pages = latest, 1
    while older := OLDER.search(page):
        page, pages = await site.page(site.path("indexers", f"timeline?before={older[1]}")), pages + 1

    assert "commits documents" not in latest
    assert "commits documents" in with_commits
    assert pages == 3  # of the five lines that are no commits
    assert "← Latest" in page
    assert " joins" in page


def generation(number: int, began: int, took: int, members: int) -> Generation:
    names = tuple(f"m{each}" for each in range(members))
    return Generation(
        number, "member joined", cause="member_joined", started_at_ms=began, completed_at_ms=began + took,
        assigned_at_ms=began + took, member_ids=names,
    )  # fmt: skip


async def test_the_time_axis_is_in_proportion() -> None:
    axis = axis_of([generation(1, 1_000, 100, 2), generation(2, 6_000, 1_000, 4)], now_ms=11_000)

    assert axis is not None
    assert [(bar.x, bar.width) for bar in axis.bars] == [(0.0, 10.0), (WIDTH / 2, 100.0)]
    assert (axis.most_members, axis.blocked_ms, axis.blocked_share) == (4, 1_100, 11.0)
    assert axis.members.endswith(f"H{WIDTH}")
