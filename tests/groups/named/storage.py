"""Storage, fences and maintenance: races on a real store."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from rota.fencing import transactions
from rota.runtime import coordinator, waiting
from rota.runtime.host import ShardHost
from rota.storage import append_postgres, gate, pruning
from tests.groups.planting import Patch, Plants

PLANTS = Plants()
RACES = "tests/contracts/test_append_races.py::"
GATE = "tests/fencing/test_gate.py::"


@PLANTS.named("faults B06", RACES + "test_a_change_of_a_group_waits_in_the_line_of_its_gate")
def an_append_does_not_close_the_gate(patch: Patch) -> None:
    append_postgres._statement.cache_clear()
    patch(append_postgres, "_gate", lambda moved: moved)


@PLANTS.named("faults B08", GATE + "test_a_session_of_rotas_own_role_is_terminated")
def sessions_of_rotas_own_role_are_spared(patch: Patch) -> None:
    without = str(gate._HOLDERS).replace(" OR session.application_name <> 'rota'", "")
    assert without != str(gate._HOLDERS)
    patch(gate, "_HOLDERS", text(without))


@PLANTS.named(
    "faults B09", GATE + "test_each_session_in_the_way_is_terminated_as_it_comes", fails_with="StoreUnavailable"
)
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


@PLANTS.named("faults B17", "tests/runtime/test_upkeep.py::test_a_group_that_is_left_during_a_sweep_keeps_its_progress")
def a_sweep_deletes_groups_that_became_empty_meanwhile(patch: Patch) -> None:
    former = ShardHost.sweep
    patch(ShardHost, "sweep", lambda self, _empty_since_ms=None: former(self))


@PLANTS.named(
    "faults B18",
    "tests/runtime/test_waiting.py::test_a_change_while_the_first_answer_is_made_is_not_missed",
)
def a_wait_begins_after_its_first_answer(patch: Patch) -> None:

    async def ask_until_changed(request: Any, ask: Any, host: Any, clock: Any) -> Any:
        first = [await ask(request)]

        async def ask_again(request: Any) -> Any:
            return first.pop() if first else await ask(request)

        return await waiting.ask_until_changed(request, ask_again, host, clock)

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
