"""Fences in SQL after a static member was taken over: of two members of one generation, only one holds it now."""

from __future__ import annotations

import asyncpg
import pytest

from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import JoinReply
from rota.server.runtime.coordinator import LocalCoordinator
from rota.storage.verify import verify
from tests.fencing.conftest import joined, replaced

ASSERT = "SELECT rota.assert_current('default', 'tellers', $1, $2)"
TOKEN = "SELECT rota.assert_token('default', 'tellers', $1, $2)"
COMMIT = "SELECT rota.commit_offsets('default', 'tellers', $1, $2, 'transfers', 0, 42)"
WRITE = "INSERT INTO ledger VALUES ($1, $2)"


async def rejected(teller: asyncpg.Connection, statement: str, *values: object) -> str:
    with pytest.raises(asyncpg.PostgresError) as refusal:
        await teller.execute(statement, *values)
    return str(refusal.value.sqlstate)


async def both(coordinator: LocalCoordinator) -> tuple[JoinReply, JoinReply]:
    """A process, and a second one with its instance id; the first does not know."""
    old, new = await joined(coordinator), await joined(coordinator)
    assert old.generation_id == new.generation_id
    return old, new


async def test_a_takeover_is_fenced_by_generation_and_member(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    old = await joined(coordinator)
    await teller.execute(ASSERT, old.generation_id, None)

    new = await joined(coordinator)

    assert await rejected(teller, ASSERT, old.generation_id, None) == "RT006"
    assert await rejected(teller, ASSERT, old.generation_id, old.member_id) == "RT002"
    assert await rejected(teller, COMMIT, old.generation_id, old.member_id) == "RT002"
    await teller.execute(ASSERT, new.generation_id, new.member_id)


async def test_the_token_of_a_predecessor_passes_no_fence(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    old, new = await both(coordinator)

    await teller.execute(TOKEN, new.fencing_token, None)
    await teller.execute(TOKEN, new.fencing_token, new.member_id)
    assert await rejected(teller, TOKEN, old.fencing_token, None) == "RT006"
    assert await rejected(teller, TOKEN, old.fencing_token, old.member_id) == "RT002"
    assert await rejected(teller, TOKEN, old.fencing_token, new.member_id) == "RT001"
    third = await joined(coordinator)
    assert await rejected(teller, TOKEN, new.fencing_token, None) == "RT001"
    await teller.execute(TOKEN, third.fencing_token, None)


async def test_an_invalid_or_foreign_token_is_rejected(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    me = await joined(coordinator)

    await teller.execute(TOKEN, me.fencing_token, None)
    later = fencing_token(me.generation_id + 1)
    assert await rejected(teller, TOKEN, later, None) == "RT001"
    assert await rejected(teller, TOKEN, fencing_token(me.generation_id, 1), None) == "RT001"
    assert await rejected(teller, TOKEN, -1, None) == "RT005"
    assert await rejected(teller, TOKEN, 2**62, None) == "RT005"
    assert await rejected(teller, "SELECT rota.assert_token('default', 'nobody', $1)", later) == "RT003"


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
@pytest.mark.parametrize("fence", ["token", "generation", "member"])
async def test_a_member_taken_over_in_mid_transaction_cannot_commit(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, isolation: str, fence: str
) -> None:
    old = await joined(coordinator)

    transaction = teller.transaction(isolation=isolation)
    await transaction.start()
    statement, shown = (TOKEN, old.fencing_token) if fence == "token" else (ASSERT, old.generation_id)
    await teller.execute(statement, shown, old.member_id if fence == "member" else None)
    await teller.execute(WRITE, 1, "old")
    await joined(coordinator)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await transaction.commit()

    expected = "RT002" if fence == "member" else "RT006"
    assert refused.value.sqlstate == (expected if isolation == "read_committed" else "40001")
    assert await teller.fetch("SELECT * FROM ledger") == []


async def test_the_rows_say_what_the_journal_says_about_takeovers(
    coordinator: LocalCoordinator, dsn: str, teller: asyncpg.Connection
) -> None:
    _, new = await both(coordinator)
    await teller.execute(COMMIT, new.generation_id, new.member_id)
    await replaced(coordinator, new, "i1")
    await joined(coordinator)

    assert [difference async for shard in verify(dsn) for difference in shard.differences] == []
