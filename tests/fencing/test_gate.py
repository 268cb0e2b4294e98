"""Roles that may call the fence functions, and no more, hold up no shard."""

from __future__ import annotations

import asyncpg
import pytest

from rota.runtime.coordinator import LocalCoordinator
from tests.fencing.conftest import fetched, joined, replaced

ASSERT = "SELECT rota.assert_current('default', 'tellers', $1, $2)"
COMMIT = "SELECT rota.commit_offsets('default', 'tellers', $1, $2, 'transfers', 0, 7)"
IMMEDIATE = "SET CONSTRAINTS ALL IMMEDIATE"
IN_A_BLOCK = f"DO $$ BEGIN {IMMEDIATE}; END $$"


@pytest.mark.parametrize("early", [(IMMEDIATE,), (IN_A_BLOCK,), (IMMEDIATE, IMMEDIATE), (f"{IMMEDIATE} ;\n",)])
@pytest.mark.parametrize("is_first", [True, False])
async def test_set_constraints_immediate_takes_no_gate(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, early: tuple[str, ...], is_first: bool
) -> None:
    me = await joined(coordinator)

    transaction = teller.transaction()
    await transaction.start()
    for statement in early if is_first else ():
        await teller.execute(statement)
    await teller.execute(ASSERT, me.generation_id, me.member_id)
    for statement in () if is_first else early:
        await teller.execute(statement)
    new = await replaced(coordinator, me)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await transaction.commit()

    assert new.generation_id > me.generation_id
    assert refused.value.sqlstate == "RT001"


@pytest.mark.parametrize("early", [IMMEDIATE, IN_A_BLOCK])
async def test_offsets_commit_after_set_constraints_immediate(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, early: str
) -> None:
    me = await joined(coordinator)

    async with teller.transaction():
        await teller.execute(COMMIT, me.generation_id, me.member_id)
        await teller.execute(early)

    assert await fetched(coordinator) == {("transfers", 0): 7}


@pytest.mark.parametrize(
    "text", [f"{IMMEDIATE}; SELECT 1", f"SELECT 1; {IMMEDIATE}", f"{IMMEDIATE}; {IMMEDIATE}", f"{IMMEDIATE}; COMMIT"]
)
async def test_several_statements_with_set_constraints_are_refused(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, text: str
) -> None:
    me = await joined(coordinator)

    transaction = teller.transaction()
    await transaction.start()
    await teller.execute(ASSERT, me.generation_id, me.member_id)
    with pytest.raises(asyncpg.PostgresError, match="a fence needs a COMMIT"):
        await teller.execute(text)
    await transaction.rollback()


@pytest.mark.parametrize("text", ["COMMIT", "END", "COMMIT AND NO CHAIN", "SELECT 1; COMMIT"])
async def test_each_way_to_commit_commits_offsets(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, text: str
) -> None:
    me = await joined(coordinator)

    await teller.execute("BEGIN")
    await teller.execute(COMMIT, me.generation_id, me.member_id)
    await teller.execute(text)

    assert await fetched(coordinator) == {("transfers", 0): 7}


async def test_a_procedure_that_commits_commits_offsets(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, dsn: str
) -> None:
    me = await joined(coordinator)
    admin = await asyncpg.connect(dsn)
    await admin.execute(
        "CREATE PROCEDURE public.work(generation integer, member text) LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM rota.commit_offsets('default', 'tellers', generation, member, 'transfers', 0, 7); COMMIT; END $$"
    )
    await admin.close()

    await teller.execute("CALL public.work($1, $2)", me.generation_id, me.member_id)

    assert await fetched(coordinator) == {("transfers", 0): 7}
