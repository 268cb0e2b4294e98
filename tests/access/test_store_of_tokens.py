"""Tokens and what counts against quotas, in real stores; and what a server knows of tokens while the store is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rota.access.actions import ROLES
from rota.access.rules import Rule
from rota.access.tokens import TokenRecord
from rota.protocol.limits import Limits
from rota.protocol.messages import JoinGroup, Protocol
from rota.runtime.coordinator import LocalCoordinator
from rota.runtime.ports import StoreRefused, StoreUnavailable
from rota.server.access.stored_tokens import StoredTokens
from rota.storage import SqlStore, upgrade
from rota.storage.token_table import TokenTable

SCOPE = Rule("scope of ci", ("token:ci",), ROLES["member"], ("team-a",), ("bill*",), ())
RECORD = TokenRecord("id1", "ci", "d" * 64, (SCOPE,), created_at_ms=5, expires_at_ms=9, note="for CI")


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

    await table.add(RECORD)

    assert await running.read_tokens() == await table.read() == [RECORD]


async def test_a_token_is_revoked_once_and_then_forgotten(store: tuple[str, SqlStore]) -> None:
    url, running = store
    table = TokenTable(url)
    await table.add(RECORD)

    await table.revoke("id1", 7)
    await table.revoke("id1", 8)
    (revoked,) = await running.read_tokens()
    await table.forget("id1")

    assert revoked.revoked_at_ms == 7
    assert await running.read_tokens() == []


async def test_the_latest_use_that_a_replica_notes_of_a_token_stays(store: tuple[str, SqlStore]) -> None:
    url, running = store
    table = TokenTable(url)
    await table.add(RECORD)
    await table.add(replace(RECORD, token_id="id2"))

    await running.note_token_uses({"id1": 700, "id2": 800})
    await running.note_token_uses({"id1": 600, "id2": 900, "forgotten": 900})

    assert {each.token_id: each.last_used_at_ms for each in await table.read()} == {"id1": 700, "id2": 900}


async def test_what_a_namespace_has_is_counted_in_the_store(store: tuple[str, SqlStore]) -> None:
    _, running = store
    async with LocalCoordinator(running, shard_count=2, limits=Limits(initial_rebalance_delay_ms=0)) as coordinator:
        await coordinator.wait_until_ready()
        for namespace, group_id, instance in (("a", "g", "i1"), ("a", "h", "i1"), ("b", "g", "i1")):
            protocols = (Protocol("p"),)
            joining = JoinGroup(namespace, group_id, "t", protocols, 30_000, 30_000, group_instance_id=instance)
            await coordinator.call(joining)
        stored = await running.read_stored("a")

    assert stored.groups == {"g", "h"}
    assert stored.members == 2
    assert stored.instances == {("g", "i1"), ("h", "i1")}
    assert (await running.read_stored("nobodys")).members == 0


async def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="there is no store"):
        await TokenTable(f"sqlite:///{tmp_path / 'none.db'}").read()

    assert list(tmp_path.iterdir()) == []


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


async def test_an_unknown_token_makes_a_server_look_at_once_but_not_again_and_again() -> None:
    table = Table(RECORD)
    tokens = StoredTokens(table)

    await tokens.look_again("id1")
    for made_up in range(50):
        await tokens.look_again(f"made-up-{made_up}")

    assert tokens.record("id1") == RECORD
    assert table.looks == 1


async def test_while_the_store_is_away_known_tokens_stay() -> None:
    table = Table(RECORD)
    tokens = StoredTokens(table)
    await tokens.look_again("id1")
    table.is_away = True

    await tokens._look()

    assert tokens.record("id1") == RECORD


async def test_a_token_in_use_is_noted_once_in_five_minutes() -> None:
    table = Table(RECORD)
    tokens = StoredTokens(table)

    for second in range(0, 600, 2):
        tokens.used("id1", 1_000 * second)
        await tokens._look()
        await tokens._note_uses()

    assert [uses["id1"] for uses in table.noted] == [0, 300_000]


async def test_what_another_replica_has_noted_is_not_noted_again() -> None:
    table = Table(replace(RECORD, last_used_at_ms=1_000))
    tokens = StoredTokens(table)
    await tokens.look_again("id1")

    tokens.used("id1", 60_000)
    tokens.used("forgotten", 60_000)
    await tokens._note_uses()

    assert table.noted == []


async def test_a_use_that_cannot_be_noted_hurts_nobody() -> None:
    table = Table(RECORD)
    tokens = StoredTokens(table)
    await tokens.look_again("id1")
    tokens.used("id1", 1_000)
    table.is_away = True

    await tokens._note_uses()

    assert tokens.record("id1") == RECORD
