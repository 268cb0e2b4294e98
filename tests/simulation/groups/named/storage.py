"""Storage, fences and maintenance: races on a real store."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from rota.core.replica.owned_shard import OwnedShard
from rota.fencing import transactions
from rota.server.runtime import coordinator, following
from rota.storage import append, gate, pruning
from rota.storage.append import driver_of
from rota.storage.store import SqlStore
from tests.simulation.groups.planting import Plants
from tests.simulation.registry import Patch

PLANTS = Plants()
RACES = "tests/contracts/test_append_races.py::"
GATE = "tests/fencing/test_gate.py::"
GENERATED = "tests/contracts/test_generated_races.py::test_what_waits_ends_as_one_after_the_other"


@PLANTS.named("faults B06", RACES + "test_a_change_of_a_group_waits_in_the_line_of_its_gate")
def an_append_does_not_close_the_gate(patch: Patch) -> None:
    patch(append, "_statement", cache(append._statement.__wrapped__))  # Later tests keep the statements of before.
    patch(append, "_gate", lambda moved: moved)


@PLANTS.named("faults B08", GATE + "test_a_session_of_rotas_own_role_is_terminated")
def sessions_of_rotas_own_role_are_spared(patch: Patch) -> None:
    without = str(gate._HOLDERS).replace(" OR session.application_name <> 'rota'", "")
    assert without != str(gate._HOLDERS)
    patch(gate, "_HOLDERS", text(without))


@PLANTS.named("faults B09", GENERATED + "[0]", fails_with="StoreUnavailable")
def the_holders_of_a_gate_are_read_once(patch: Patch) -> None:
    async def open_once(self: Any, _append: Any) -> None:
        await self._terminate_holders()

    patch(gate.Gate, "_open", open_once)


@PLANTS.named(
    "faults B11",
    "tests/contracts/test_pruning.py::test_a_shard_that_a_reader_has_not_begun_keeps_its_lines[postgres]",
)
def a_day_is_emptied_before_a_reader_has_begun_a_shard(patch: Patch) -> None:
    former = pruning._empty

    class Ends(dict[int, int]):
        def get(self, shard_id: int, _default: Any = None) -> Any:
            return dict.get(self, shard_id, 1 << 62)

    patch(pruning, "_empty", lambda connection, partition, up_to: former(connection, partition, Ends(up_to)))


@PLANTS.named("faults B11 plan", GENERATED + "[0]")
def a_reader_that_has_not_begun_a_shard_holds_back_none_of_its_lines(patch: Patch) -> None:
    former = pruning.read_by_all

    def read_by_all(readers: Any, shard_id: int, last: int) -> int:
        return former([each for each in readers if each.read(shard_id)], shard_id, last)

    patch(pruning, "read_by_all", read_by_all)


@PLANTS.named("races lock", GENERATED + "[3]")
def a_fence_takes_no_lock(patch: Patch) -> None:
    _patch_the_fence(
        patch,
        "PERFORM pg_advisory_xact_lock_shared(7682003, of_shard);",
        "PERFORM FROM rota.groups AS g WHERE g.namespace = NEW.namespace AND g.group_id = NEW.group_id FOR SHARE;",
    )


@PLANTS.named("races recheck", GENERATED + "[3]")
def a_fence_is_not_checked_again_at_the_commit(patch: Patch) -> None:
    given = "NEW.namespace, NEW.group_id, NEW.generation_id, NEW.member_id, NEW.offsets IS NOT NULL"
    _patch_the_fence(patch, f"PERFORM rota.check_fence(\n            {given}\n        );")


def _patch_the_fence(patch: Patch, *removed: str) -> None:
    """Have each store that is opened lack these lines in the trigger of its fences."""
    former = SqlStore.open

    async def opened(self: SqlStore, shard_count: int) -> None:
        await former(self, shard_count)
        async with self._writing() as connection:
            defined = await connection.scalar(text("SELECT pg_get_functiondef('rota.fence_at_commit()'::regprocedure)"))
            for line in removed:
                assert line in defined
                defined = defined.replace(line, "")
            await driver_of(connection).execute(defined)

    patch(SqlStore, "open", opened)


@PLANTS.named("faults B17", "tests/runtime/test_upkeep.py::test_a_group_that_is_left_during_a_sweep_keeps_its_progress")
def a_sweep_deletes_groups_that_became_empty_meanwhile(patch: Patch) -> None:
    former = OwnedShard.sweep
    patch(OwnedShard, "sweep", lambda self, now, empty_since_ms=None: former(self, now))


@PLANTS.named(
    "faults B18",
    "tests/runtime/test_waiting.py::test_a_change_while_the_first_answer_is_made_is_not_missed",
)
def a_wait_begins_after_its_first_answer(patch: Patch) -> None:

    async def ask_until_changed(request: Any, ask: Any, host: Any, clock: Any) -> Any:
        first = [await ask(request)]

        async def ask_again(request: Any) -> Any:
            return first.pop() if first else await ask(request)

        return await following.ask_until_changed(request, ask_again, host, clock)

    patch(coordinator, "ask_until_changed", ask_until_changed)


@PLANTS.named("faults B24", "tests/fencing/test_transactions.py::test_all_attempts_act_for_the_same_holder")
def an_async_attempt_asks_for_its_holder_anew(patch: Patch) -> None:
    def async_runner(sessions: Any, holder: Any, work: Any, attempts: int) -> Any:
        async def run(*arguments: Any, **named: Any) -> Any:
            for attempt in range(1, attempts + 1):
                try:
                    async with sessions.begin() as session:
                        await session.execute(transactions.assert_current(holder()))
                        return await work(session, *arguments, **named)
                except DBAPIError as error:
                    transactions._raise_unless_again(error, is_last=attempt == attempts)
            raise AssertionError("the last attempt returns or raises")

        return run

    patch(transactions, "_async_runner", async_runner)
