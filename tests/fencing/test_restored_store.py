"""Fences in users' transactions on a store that was brought back to an earlier state, before a server has loaded it."""

from __future__ import annotations

import asyncpg
import pytest

from rota.storage.restored import restored
from tests.fencing.conftest import joined, serving
from tests.fencing.test_sql_functions import ASSERT, WRITE, written


async def test_a_holder_of_the_restored_generation_passes_no_fence(dsn: str, teller: asyncpg.Connection) -> None:
    async with serving(dsn) as coordinator:
        old = await joined(coordinator)
        async with teller.transaction():
            await teller.execute(ASSERT, old.generation_id, old.member_id)

    await restored(dsn, force=True)

    with pytest.raises(asyncpg.PostgresError) as refused:
        async with teller.transaction():
            await teller.execute(ASSERT, old.generation_id, old.member_id)
    assert refused.value.sqlstate == "RT001"
    assert refused.value.detail is not None
    assert "The store went back to an earlier state" in refused.value.detail


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_a_transaction_of_before_the_restore_cannot_commit(
    dsn: str, teller: asyncpg.Connection, isolation: str
) -> None:
    async with serving(dsn) as coordinator:
        old = await joined(coordinator)
    transaction = teller.transaction(isolation=isolation)
    await transaction.start()
    await teller.execute(ASSERT, old.generation_id, old.member_id)
    await teller.execute(WRITE, 1)

    await restored(dsn, force=True)

    with pytest.raises(asyncpg.PostgresError) as refused:
        await transaction.commit()
    assert refused.value.sqlstate in ("RT001", "40001")
    assert await written(teller) == []
