"""A store that was brought back to an earlier state, and a fenced resource beside it: tokens never go back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.processes.restoring import (
    LEASE_MS,
    Commands,
    CopiedCluster,
    CopiedFile,
    Copy,
    Holder,
    Resource,
    generations,
    run,
)
from tests.processes.server import Server
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes

pytestmark = [pytest.mark.processes, pytest.mark.thorough]


@pytest.fixture(
    params=[
        "sqlite backup",
        pytest.param("sqlite copy", marks=pytest.mark.slow),
        "postgres dump",
        pytest.param("postgres snapshot", marks=pytest.mark.slow),
    ]
)
def copy(request: pytest.FixtureRequest, processes: Processes, tmp_path: Path) -> Iterator[Copy]:
    sqlite = f"sqlite:///{tmp_path / 'rota.db'}"
    match request.param:
        case "sqlite backup":
            yield Commands(sqlite, processes, tmp_path)
        case "sqlite copy":
            yield CopiedFile(sqlite, processes, tmp_path)
        case "postgres dump":
            yield Commands(request.getfixturevalue("postgres_dsn"), processes, tmp_path)
        case _:
            with PostgresServer(durable=False) as server:
                yield CopiedCluster(server, processes)


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with closing(httpx.Client(trust_env=False, timeout=30)) as client:
        yield client


def test_one_holder_a_term_across_a_restore(copy: Copy, processes: Processes, http: httpx.Client) -> None:
    run(processes, "db", "upgrade", "--store", copy.url)
    server, resource = Server(processes, copy.url, lease_ms=LEASE_MS), Resource()
    server.start_and_wait()
    old, deposed = Holder(server, http), Holder(server, http)
    assert all(resource.write(token, "old") for token in generations(old, 2))
    copy.take()
    deposed.member_id = old.member_id
    assert all(resource.write(token, "deposed") for token in generations(deposed, 4))
    highest = resource.highest
    assert deposed.commit(41).is_success
    copy.stop(server.process)

    copy.bring_back()
    server.start_and_wait()

    assert f"rota_store_went_back_total {copy.shards_counted}.0" in http.get(f"{server.url}/metrics").text
    # The restored rows name the generation of `old`; the group begins beyond both.
    assert not old.is_current()
    assert not deposed.is_current()
    assert not old.commit(5).is_success
    old.leave()
    new = Holder(server, http)
    assert resource.write(new.join(), "new")
    assert new.generation_id > highest + 900_000
    assert new.commit(6).is_success
    assert not resource.write(old.generation_id, "old")
    assert not resource.write(deposed.generation_id, "deposed")
    assert resource.twins == []
    server.process.terminate()
    run(processes, "db", "verify", "--store", copy.url)
