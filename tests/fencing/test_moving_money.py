"""Money moves in the user's tables together with the offset while zombies write, too: no loss, no double."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import asyncpg

from rota.protocol.messages import JoinReply
from rota.server.runtime.coordinator import LocalCoordinator
from tests.fencing.conftest import connected, fetched, joined, replaced

TRANSFERS = 60
STALE = {"RT001", "RT002"}
AGAIN = {"40001", "40P01"}


@dataclass
class Bank:
    """What the tellers did, as they know it themselves."""

    is_closing: bool = False
    """Set once the last teller is in: before, there may be more to move, and a teller that finds nothing asks again."""
    moved: int = 0
    refused_at_commit: int = 0
    stopped: list[str] = field(default_factory=list)


async def work(dsn: str, bank: Bank, teller: JoinReply) -> None:
    """Move one transfer after the other until the bank closes, or until the fence names another member as the owner.

    It never asks whether it still has the work. That is what makes it a zombie once it has not.
    """
    async with connected(dsn) as connection:
        while True:
            transaction = connection.transaction()
            await transaction.start()
            is_committing = False
            try:
                if not await move_one(connection, teller, is_fenced=True):
                    await transaction.rollback()
                    if bank.is_closing:
                        return
                    continue
                is_committing = True
                await transaction.commit()
                bank.moved += 1
            except asyncpg.PostgresError as error:
                if not is_committing:
                    await transaction.rollback()
                if error.sqlstate in AGAIN:
                    continue
                bank.refused_at_commit += is_committing
                bank.stopped.append(str(error.sqlstate))
                return


async def move_one(connection: asyncpg.Connection, teller: JoinReply, *, is_fenced: bool) -> bool:
    number = max(0, await connection.fetchval("SELECT rota.committed_offset('default', 'tellers', 'transfers', 0)"))
    if is_fenced:
        commit = "SELECT rota.commit_offsets('default', 'tellers', $1, $2, 'transfers', 0, $3)"
        await connection.execute(commit, teller.generation_id, teller.member_id, number + 1)
    amount = await connection.fetchval("SELECT amount FROM transfers WHERE number = $1", number)
    if amount is None:
        return False
    await connection.execute("INSERT INTO ledger VALUES ($1, $2)", number, teller.member_id)
    await connection.execute("UPDATE accounts SET balance = balance - $1 WHERE name = 'alice'", amount)
    await connection.execute("UPDATE accounts SET balance = balance + $1 WHERE name = 'bob'", amount)
    return True


async def opened(dsn: str) -> None:
    async with connected(dsn) as connection:
        await connection.execute("INSERT INTO accounts VALUES ('alice', 100000), ('bob', 0)")
        await connection.execute(
            f"INSERT INTO transfers SELECT n, n * 7 + 1 FROM generate_series(0, {TRANSFERS - 1}) n"
        )


async def test_each_transfer_is_moved_once_whatever_zombies_do(dsn: str, coordinator: LocalCoordinator) -> None:
    await opened(dsn)
    bank = Bank()
    teller = await joined(coordinator, "teller-0")

    async with asyncio.TaskGroup() as tasks:
        for generation in range(1, 6):
            tasks.create_task(work(dsn, bank, teller))
            while bank.moved < generation * 5:  # noqa: ASYNC110 - a count has no event
                await asyncio.sleep(0.001)
            # The former one is not notified, and goes on writing beside the new one.
            teller = await replaced(coordinator, teller, f"teller-{generation}")
        bank.is_closing = True
        tasks.create_task(work(dsn, bank, teller))

    async with connected(dsn) as connection:
        numbers = [row["number"] for row in await connection.fetch("SELECT number FROM ledger ORDER BY number")]
        balances = dict(await connection.fetch("SELECT name, balance FROM accounts"))
        total = await connection.fetchval("SELECT sum(amount) FROM transfers")
    assert numbers == list(range(TRANSFERS))
    assert balances == {"alice": 100_000 - total, "bob": total}
    assert await fetched(coordinator) == {("transfers", 0): TRANSFERS}
    assert bank.moved == TRANSFERS
    assert len(bank.stopped) == 5
    assert set(bank.stopped) <= STALE


async def test_a_zombie_that_has_done_all_but_commit_is_refused_there(dsn: str, coordinator: LocalCoordinator) -> None:
    await opened(dsn)
    zombie = await joined(coordinator)
    async with connected(dsn) as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert await move_one(connection, zombie, is_fenced=True)

        bank = Bank(is_closing=True)
        working = asyncio.create_task(work(dsn, bank, await replaced(coordinator, zombie)))
        try:
            await transaction.commit()
            refused = ""
        except asyncpg.PostgresError as error:
            refused = str(error.sqlstate)
        await working

    assert refused in STALE
    assert bank.moved == TRANSFERS


async def test_without_the_fence_the_same_zombie_moves_money_twice(dsn: str, coordinator: LocalCoordinator) -> None:
    """What the tests above would see if the fence did nothing."""
    await opened(dsn)
    zombie = await joined(coordinator)
    async with connected(dsn) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await move_one(connection, zombie, is_fenced=False)
        new = await replaced(coordinator, zombie)
        await transaction.commit()

        await move_one(connection, new, is_fenced=True)
        doubles = await connection.fetchval("SELECT count(*) - count(DISTINCT number) FROM ledger")

    assert doubles == 1
