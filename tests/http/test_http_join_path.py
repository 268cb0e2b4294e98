"""The path of a join stays as short as ADR 131 says, unless a change of that page gives the reason."""

from __future__ import annotations

from pathlib import Path

from tests.support.traced_join import trace_a_join

MOST_FILES = 38
"""One more than today: another lease may be renewed, or another timer be set, within each of the joins."""


async def test_a_join_leads_through_few_files(tmp_path: Path) -> None:
    trace = await trace_a_join(tmp_path)

    assert {
        "server/http/member_calls.py",
        "server/runtime/loop.py",
        "core/group/join.py",
        "storage/store.py",
    } <= trace.files
    assert len(trace.files) <= MOST_FILES, sorted(trace.files)
