"""Tokens and what counts against quotas, in real stores; and what a server knows of tokens while the store is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from rota.core.access.rules import ROLES, Rule
from rota.core.access.tokens import TokenRecord
from rota.core.replica.ports import StoreUnavailable
from rota.protocol.ids import NO_SHARD
from rota.protocol.limits import Limits
from rota.protocol.messages import Act, CommitOffsets, JoinGroup, OffsetToCommit, Protocol, PutTopic
from rota.server.access.tokens import Tokens
from rota.server.runtime.coordinator import LocalCoordinator
from rota.storage.access import TokenTable
from rota.storage.migrate import upgrade
from rota.storage.store import SqlStore
from rota.storage.verify import verify

SCOPE = Rule("scope of ci", ("token:ci",), ROLES["member"], ("team-a",), ("bill*",), ())
RECORD = TokenRecord("id1", "ci", "d" * 64, (SCOPE,), created_at_ms=5, expires_at_ms=9, note="for CI")
ACT = Act("shell:alice", "because", "build-7")


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, SqlStore]]:
    """A store on which a server runs, and its URL."""
    on_postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_dsn") if on_postgres else f"sqlite:///{tmp_path / 'rota.db'}"
    await upgrade(url)
    store = SqlStore(url)
    await store.open(2)
    yield url, store
    await store.close()


async def test_a_record_survives_the_store_whole(store: tuple[str, SqlStore]) -> None:
    url, running = store
    table = TokenTable(url)

    await table.add(RECORD, ACT)

    assert await running.read_tokens() == await table.read() == [RECORD]


async def test_a_token_is_revoked_once_and_then_forgotten(store: tuple[str, SqlStore]) -> None:
    url, running = store
    table = TokenTable(url)
    await table.add(RECORD, ACT)

    await table.revoke("id1", 7, ACT)
    await table.revoke("id1", 8, ACT)
    (revoked,) = await running.read_tokens()
    await table.forget("id1", ACT)

    assert revoked.revoked_at_ms == 7
    assert await running.read_tokens() == []


async def test_the_journal_names_authors_of_tokens_and_no_secret(store: tuple[str, SqlStore]) -> None:
    url, running = store
    table = TokenTable(url)

    await table.add(RECORD, ACT)
    await table.revoke("id1", 7, Act("token:admin", "it was in a log", "10.0.0.7"))
    await table.revoke("id1", 8, ACT)
    await table.forget("id1", ACT)
    await table.forget("id1", ACT)
    lines = await running.read_events(NO_SHARD, 0, 100)

    assert [(each.seq, each.epoch, each.kind, each.reason) for each in lines] == [
        (1, 1, "administered", "because"),
        (2, 1, "administered", "it was in a log"),
        (3, 1, "administered", "because"),
    ]
    revoked = {"operation": "RevokeToken", "actor": "token:admin", "target": "ci id1", "origin": "10.0.0.7"}
    assert lines[1].payload == revoked
    assert [(each.done, each.name, each.token_id) for each in await table.acts(2)] == [
        ("Forget", "ci", "id1"),
        ("Revoke", "ci", "id1"),
    ]
    assert RECORD.digest not in str(lines)


async def test_audit_entries_count_up_and_failures_leave_none(
    store: tuple[str, SqlStore],
) -> None:
    url, running = store
    named = [replace(RECORD, token_id=f"id{number}") for number in range(8)]
    table = TokenTable(url)
    await table.add(RECORD, ACT)

    done = await asyncio.gather(*(table.add(each, ACT) for each in named), return_exceptions=True)

    taken = [each for each in done if each is not None]
    lines = await running.read_events(NO_SHARD, 0, 100)
    assert len(taken) == 1  # id1 was there before
    assert [line.seq for line in lines] == list(range(1, 9))
    assert [line.at_ms for line in lines] == sorted(line.at_ms for line in lines)
    assert {each.token_id for each in await table.acts(100)} == {each.token_id for each in named}
    assert [report.differences async for report in verify(url)] == [(), (), ()]
    assert all(owner.shard_id != NO_SHARD for owner in await running.owners())


async def test_the_latest_use_that_a_replica_notes_of_a_token_stays(store: tuple[str, SqlStore]) -> None:
    url, running = store
    table = TokenTable(url)
    await table.add(RECORD, ACT)
    await table.add(replace(RECORD, token_id="id2"), ACT)

    await running.note_token_uses({"id1": 700, "id2": 800})
    await running.note_token_uses({"id1": 600, "id2": 900, "forgotten": 900})

    assert {each.token_id: each.last_used_at_ms for each in await table.read()} == {"id1": 700, "id2": 900}


async def test_what_a_namespace_has_is_counted_in_the_store(store: tuple[str, SqlStore]) -> None:
    _, running = store
    async with LocalCoordinator(running, shard_count=2, limits=Limits(initial_rebalance_delay_ms=0)) as coordinator:
        await coordinator.wait_until_ready()
        for namespace, group_id, instance in (("a", "g", "i1"), ("a", "h", "i1"), ("b", "g", "i1")):
            joining = JoinGroup(namespace, group_id, "t", (Protocol("p", b"m" * 3_000),), 30_000, 30_000)
            await coordinator.call(structs.replace(joining, group_instance_id=instance, subject=f"token:{group_id}"))
        await coordinator.call(CommitOffsets("a", "made", -1, (OffsetToCommit("t", 0, 1, metadata="x" * 500),)))
        await coordinator.call(PutTopic("a", "topic", 1, {"name": "v" * 100}))
        stored = await running.read_stored("a", counts_bytes=True)
        uncounted = await running.read_stored("a", counts_bytes=False)
        nothing = await running.read_stored("nobodys", counts_bytes=True)

    assert stored.groups == {"g", "h", "made"}
    assert stored.members == 2
    assert stored.instances == {("g", "i1"), ("h", "i1")}
    assert stored.topics == {"topic"}
    assert {subject: (held.groups, held.members) for subject, held in stored.by_caller.items()} == {
        "token:g": (frozenset({"g"}), 1),
        "token:h": (frozenset({"h"}), 1),
    }
    assert 3_000 <= stored.by_caller["token:g"].bytes <= 3_000 * 4 / 3 + 100
    assert stored.offset_bytes == {"made": 517}
    assert 6_600 <= stored.bytes - 517 <= 6_000 * 4 / 3 + 400
    assert (uncounted.groups, uncounted.members, uncounted.topics) == (stored.groups, 2, stored.topics)
    assert uncounted.bytes < 200
    assert (nothing.members, nothing.bytes) == (0, 0)


class Table:
    """A table of tokens that may be away."""

    def __init__(self, *records: TokenRecord) -> None:
        self.records = list(records)
        self.is_away = False
        self.looks = 0
        self.noted: list[Mapping[str, int]] = []

    async def read_tokens(self) -> list[TokenRecord]:
        self.looks += 1
        if self.is_away:
            raise StoreUnavailable("away")
        return self.records

    async def note_token_uses(self, used_at_ms: Mapping[str, int]) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        self.noted.append(used_at_ms)
        self.records = [replace(each, last_used_at_ms=used_at_ms[each.token_id]) for each in self.records]


async def test_an_unknown_token_refreshes_at_once_but_not_repeatedly() -> None:
    table = Table(RECORD)
    tokens = Tokens(table)

    await tokens.read_again("id1")
    await asyncio.gather(*(tokens.read_again(f"made-up-{made_up}") for made_up in range(50)))

    assert tokens.record("id1") == RECORD
    assert table.looks == 2


async def test_while_the_store_is_away_known_tokens_stay() -> None:
    table = Table(RECORD)
    tokens = Tokens(table)
    await tokens.read_again("id1")
    table.is_away = True

    await tokens._read(table)

    assert tokens.record("id1") == RECORD


async def test_a_token_in_use_is_noted_once_in_five_minutes() -> None:
    table = Table(RECORD)
    tokens = Tokens(table)

    for second in range(0, 600, 2):
        tokens._used_at_ms["id1"] = 1_000 * second
        await tokens._read(table)
        await tokens._note_uses(table)

    assert [uses["id1"] for uses in table.noted] == [0, 300_000]


async def test_a_use_that_cannot_be_noted_hurts_nobody() -> None:
    table = Table(RECORD)
    tokens = Tokens(table)
    await tokens.read_again("id1")
    tokens._used_at_ms["id1"] = 1_000
    table.is_away = True

    await tokens._note_uses(table)

    assert tokens.record("id1") == RECORD
