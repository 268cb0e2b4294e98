"""The caller's own access in the console, and the history of tokens for readers of the journal."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.access.guarded import bearer
from tests.console.doors import Doors, guarded

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def doors(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Doors]:
    async with guarded(tmp_path_factory.mktemp("guarded")) as doors:
        yield doors


@pytest.mark.parametrize("role", ["viewer", "admin"])
async def test_the_caller_sees_its_subject_rules_and_roles(doors: Doors, role: str) -> None:
    async with doors.browser(role) as browser:
        page = (await browser.get("/access")).text

    assert re.search(rf"You are <b>token:{role}</b>", page)
    assert f"<td>{role}</td>" in page


async def test_tokens_history_is_read_over_http_by_journal_readers(doors: Doors) -> None:
    token_id, _ = await doors.store("read-over-http", 6)
    path = "/v1/events?shard=-1&limit=1000"

    read = await doors.http.get(path, headers=bearer(doors.tokens["admin"]))
    refused = await doors.http.get(path, headers=bearer(doors.tokens["viewer"]))

    (line,) = (event for event in read.json()["events"] if token_id in event["payload"]["target"])
    assert (line["kind"], line["payload"]["operation"]) == ("administered", "CreateToken")
    assert line["payload"]["actor"] == "shell:tests"
    assert refused.status_code == httpx.codes.FORBIDDEN
