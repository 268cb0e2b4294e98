"""Schemathesis against the real coordinator: whatever the OpenAPI document lets one think of."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from rota.core.replica.forwarding import Submitted
from rota.core.replica.ports import Answer, Cancel
from rota.protocol.limits import Limits
from rota.protocol.messages import GetLeader, GetTopic, Heartbeat, JoinGroup, Request, SyncGroup
from rota.server.http.app import create_app
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from tests.http.serving import serving

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

SEED = "20261121"
EXAMPLES = "12"
# Small, because Schemathesis goes one beyond each of them: a list of 100,001 items takes it seconds to think of.
LIMITS = Limits(
    initial_rebalance_delay_ms=0,
    group_max_size=20,
    max_protocols=8,
    metadata_max_bytes=192,
    assignment_max_bytes=192,
    request_max_bytes=64 * 1024,
    max_partitions_per_request=20,
    reason_max_chars=100,
)
LEAST_CASES = 1_000
MOST_SECONDS = 600.0

CHECKS = ",".join(
    (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
    )
)

# 413 refuses long bodies, 412 calls of an old generation; Schemathesis does not count either by itself.
CONFIG = """
[checks]
negative_data_rejection.expected-statuses = [400, 404, 405, 409, 412, 413, 415, 428, 503]
"""


class ImpatientCoordinator(LocalCoordinator):
    """The real one, but nothing parks: a generator of requests would wait for news that no other client makes."""

    async def call(self, request: Request) -> Answer:
        return await super().call(without_wait(request))

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        return super().submit(without_wait(request), done)


def without_wait(request: Any) -> Any:
    if isinstance(request, (JoinGroup, SyncGroup, Heartbeat, GetLeader, GetTopic)):
        return replace(request, wait_ms=0)
    return request


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[httpx.AsyncClient]:
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(4)
    async with ImpatientCoordinator(store, shard_count=4, limits=LIMITS, clock=clock) as coordinator:
        await coordinator.wait_until_ready()
        async with serving(create_app(coordinator, LIMITS)) as client:
            yield client


@pytest.mark.slow
async def test_no_generated_request_breaks_the_documents_promises(served: httpx.AsyncClient, tmp_path: Path) -> None:
    """One worker and a fixed seed, so that a failure is found again. Event streams never end, so they are left out."""
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    program = Path(sys.executable).with_name("st")
    process = await asyncio.create_subprocess_exec(
        *(program, "run", str(served.base_url.join("/openapi.json"))),
        *("--seed", SEED, "--workers", "1", "--max-examples", EXAMPLES, "--phases", "coverage,fuzzing,stateful"),
        *("--checks", CHECKS, "--exclude-operation-id", "groupsWatch", "--request-timeout", "10"),
        *("--generation-database", "none", "--no-color", "--warnings", "off"),
        cwd=tmp_path,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    started = time.monotonic()
    try:
        async with asyncio.timeout(MOST_SECONDS):
            printed = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    print(printed, time.monotonic() - started)
    assert process.returncode == 0, printed
    cases = re.search(r"(\d[\d,]*) generated", printed)
    assert cases is not None, printed
    assert int(cases[1].replace(",", "")) >= LEAST_CASES
