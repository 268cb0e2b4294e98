"""Every way out of a membership, in virtual time: work is ended, the group is left, and no error is hidden."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from rota.client import Consumer, Election, Generation, LeadershipLost, Member, Term
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import GROUP, SESSION_S, TOPICS, Partitions, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time, pause

NAME = "billing-writer"


def a_candidate(coordinator: LocalCoordinator, name: str) -> tuple[Worker, Election]:
    worker = a_worker(coordinator, name)
    return worker, worker.client.leader(NAME, session_timeout=SESSION_S)


def failure_of(election: Election) -> type[object]:
    return type(election.failure)


async def leads(election: Election) -> None:
    await until(lambda: election.is_leader)


# --- elections ----------------------------------------------------------------------------------


@in_virtual_time
@pytest.mark.parametrize("way", ["resign", "step_aside", "in a task of the body"])
async def test_a_body_may_resign_and_another_candidate_leads(way: str) -> None:
    async with a_coordinator() as coordinator:
        _, first = a_candidate(coordinator, "first")
        _, second = a_candidate(coordinator, "second")
        begun: list[str] = []

        async def work(term: Term) -> None:
            begun.append("first")
            if way == "resign":
                await first.resign("enough", pause=60)
            elif way == "step_aside":
                await first.member.step_aside("enough")
            else:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(first.resign("enough", pause=60))
            begun.append("never")

        async def wait(term: Term) -> None:
            begun.append("second")
            await asyncio.Event().wait()

        async with first, second:
            tasks = [asyncio.create_task(first.run(work))]
            tasks.append(asyncio.create_task(second.run(wait)))
            await until(lambda: "second" in begun)
            assert begun == ["first", "second"]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@in_virtual_time
async def test_a_resignation_that_its_caller_gives_up_is_carried_out() -> None:
    async with a_coordinator() as coordinator:
        _, election = a_candidate(coordinator, "a")
        begun: list[int] = []

        async def work(term: Term) -> None:
            begun.append(term.fencing_token)
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(1)

        async with election:
            running = asyncio.create_task(election.run(work))
            await until(lambda: len(begun) == 1)
            resigning = asyncio.create_task(election.resign())
            await asyncio.sleep(0.5)
            resigning.cancel()
            await until(lambda: len(begun) == 2)
            running.cancel()
            await asyncio.wait((running,))


@in_virtual_time
async def test_run_raises_another_elections_loss_and_resigns_its_own() -> None:
    async with a_coordinator() as coordinator:
        _, election = a_candidate(coordinator, "a")
        _, other = a_candidate(coordinator, "b")

        async def work(term: Term) -> None:
            raise LeadershipLost("the inner one")

        async with election, other:
            with pytest.raises(LeadershipLost, match="the inner one"):
                await election.run(work)
            await leads(other)
            assert not election.is_leader


@in_virtual_time
async def test_work_that_notices_its_loss_first_is_called_again() -> None:
    async with a_coordinator() as coordinator:
        tokens: list[int] = []

        async def work(term: Term) -> str:
            tokens.append(term.fencing_token)
            if len(tokens) == 1:
                pause(10)  # As in SIGSTOP, a machine that sleeps, or a blocked event loop.
                term.raise_if_lost()
            return "done"

        election = a_worker(coordinator).client.leader("writer", session_timeout=SESSION_S)
        assert await election.run(work) == "done"

        assert len(tokens) == 2
        assert tokens[0] < tokens[1]


@in_virtual_time
async def test_work_that_asks_and_was_removed_is_called_again() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        election, tokens = client.leader("writer", session_timeout=SESSION_S), list[int]()

        async def work(term: Term) -> str:
            tokens.append(term.fencing_token)
            if len(tokens) == 1:
                removed, _ = await asyncio.gather(
                    asyncio.create_task(verified(term)), client.remove_member("writer", election.member.member_id)
                )
                return removed
            return "done"

        async def verified(term: Term) -> str:
            while True:
                await term.verify()

        assert await election.run(work) == "done"
        assert len(tokens) == 2


@in_virtual_time
async def test_to_return_is_to_resign_and_to_run_is_to_campaign() -> None:
    async with a_coordinator() as coordinator:
        _, first = a_candidate(coordinator, "first")
        _, second = a_candidate(coordinator, "second")

        async def once(term: Term) -> int:
            return term.fencing_token

        async with first, second:
            assert await first.run(once) is not None
            await leads(second)
            assert not first.is_leader
            await second.close()
            assert await first.run(once) is not None


@in_virtual_time
async def test_to_resign_after_run_has_ended_does_not_campaign_again() -> None:
    async with a_coordinator() as coordinator:
        _, election = a_candidate(coordinator, "a")

        async def once(term: Term) -> int:
            return term.fencing_token

        async with election:
            await election.run(once)
            await election.resign()
            await asyncio.sleep(5)
            assert not election.is_leader


@in_virtual_time
async def test_work_that_raises_is_retried_where_requested() -> None:
    async with a_coordinator() as coordinator:
        _, election = a_candidate(coordinator, "a")
        begun: list[float] = []

        async def work(term: Term) -> None:
            begun.append(asyncio.get_running_loop().time())
            if len(begun) < 3:
                raise ZeroDivisionError
            await asyncio.Event().wait()

        running = asyncio.create_task(election.run(work, retry=True))
        await until(lambda: len(begun) == 3)
        assert begun[1] - begun[0] >= 0.5
        assert begun[2] - begun[1] >= 1.0
        assert failure_of(election) is ZeroDivisionError
        await asyncio.sleep(31)
        assert failure_of(election) is type(None)
        election.stop()
        await running


@in_virtual_time
async def test_a_stop_lets_the_work_of_a_term_drain_and_leaves() -> None:
    async with a_coordinator() as coordinator:
        worker, election = a_candidate(coordinator, "a")
        ends: list[str] = []

        async def work(term: Term) -> str:
            await term.stopping.wait()
            await asyncio.sleep(1)
            ends.append("by itself" if term.is_valid else "too late")
            return "done"

        running = asyncio.create_task(election.run(work, drain_timeout=5.0))
        await leads(election)
        election.stop()
        assert await running == "done"
        assert (ends, worker.leaves) == (["by itself"], 1)


@in_virtual_time
async def test_a_second_stop_does_not_wait_for_the_drain() -> None:
    async with a_coordinator() as coordinator:
        worker, election = a_candidate(coordinator, "a")
        loop = asyncio.get_running_loop()

        async def work(term: Term) -> None:
            await asyncio.Event().wait()

        running = asyncio.create_task(election.run(work, drain_timeout=60.0))
        await leads(election)
        election.stop()
        await asyncio.sleep(1)
        stopped_at = loop.time()
        election.stop()
        await running
        assert loop.time() < stopped_at + 3
        assert worker.leaves == 1


# --- members ------------------------------------------------------------------------------------


def a_consumer(worker: Worker, **callbacks: Any) -> Consumer:
    return worker.client.consumer(GROUP, TOPICS, session_timeout=SESSION_S, **callbacks)


@in_virtual_time
@pytest.mark.parametrize("ending", ["close", "step_aside"])
async def test_a_callback_may_end_the_membership_that_it_is_called_for(ending: str) -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        revoked: list[Partitions] = []

        async def assigned(added: Partitions, held: Partitions) -> None:
            await (consumer.close() if ending == "close" else consumer.step_aside("enough"))

        consumer = a_consumer(worker, on_assigned=assigned, on_revoked=revoked.append)
        async with consumer:
            await until(lambda: bool(revoked) and worker.leaves == 1)
        assert sum(map(len, revoked)) == 12


@in_virtual_time
async def test_without_a_block_a_member_is_started_and_closed() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        revoked: list[Partitions] = []
        consumer = a_consumer(worker, on_revoked=revoked.append)
        await consumer.start()
        await consumer.wait_assigned()
        await consumer.close(timeout=5)
        assert (len(revoked), worker.leaves, consumer.assignment) == (1, 1, None)


@in_virtual_time
async def test_a_client_closes_members_that_are_still_open() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.client as client:
            consumer = client.consumer(GROUP, TOPICS, session_timeout=SESSION_S)
            await consumer.start()
            await consumer.wait_assigned()
        assert worker.leaves == 1


@in_virtual_time
async def test_leaving_has_a_deadline_that_cancels_the_work() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        lost: list[Partitions] = []

        async def never_ends(removed: Partitions) -> None:
            await asyncio.Event().wait()

        began_at = asyncio.get_running_loop().time()
        async with a_consumer(worker, on_revoked=never_ends, on_lost=lost.append) as consumer:
            await consumer.wait_assigned()
        assert asyncio.get_running_loop().time() < began_at + 40
        assert (len(lost), worker.leaves) == (1, 1)


@in_virtual_time
async def test_a_program_without_on_lost_is_notified_by_on_revoked() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        revoked: list[Partitions] = []
        async with a_consumer(worker, on_revoked=revoked.append) as consumer:
            await consumer.wait_assigned()
            worker.cable.pull()
            await until(lambda: bool(revoked))
            worker.cable.plug_in()
        assert sum(map(len, revoked[:1])) == 12


@in_virtual_time
async def test_the_bodys_exception_is_not_hidden_by_a_callbacks() -> None:
    async with a_coordinator() as coordinator:

        def broken(removed: Partitions) -> None:
            raise RuntimeError("of the callback")

        async def program() -> None:
            async with a_consumer(a_worker(coordinator), on_revoked=broken) as consumer:
                await consumer.wait_assigned()
                raise KeyError("of the body")

        with pytest.raises(KeyError) as raised:
            await program()
        assert "of the callback" in " ".join(raised.value.__notes__)


@in_virtual_time
@pytest.mark.parametrize("place", ["on_assigned", "on_revoked", "assign"])
async def test_an_exit_in_a_callback_leaves_the_group_first(place: str) -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)

        def leave(*_: object) -> dict[str, int]:
            sys.exit(3)

        options: dict[str, Any] = {"partitions_per_topic": leave} if place == "assign" else {place: leave}
        member = worker.client.consumer(GROUP, "work" if place == "assign" else TOPICS, **options)

        async def program() -> None:
            async with member:
                await member.wait_assigned()
                await asyncio.sleep(1)

        with pytest.raises(SystemExit):
            await program()
        assert worker.leaves == 1


@in_virtual_time
async def test_an_error_that_the_sdk_does_not_know_costs_no_share() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with a_consumer(worker) as consumer:
            await consumer.wait_assigned()
            sending, failures = worker.cable.send, 3

            async def broken(*arguments: Any, **named: Any) -> Any:
                nonlocal failures
                failures -= 1
                if failures >= 0:
                    raise ZeroDivisionError
                return await sending(*arguments, **named)

            worker.cable.send = broken  # type: ignore[method-assign]
            await until(lambda: failures < 0)
            await asyncio.sleep(2 * SESSION_S)
            assert consumer.assignment is not None


@in_virtual_time
async def test_a_pool_survives_an_outage_that_a_commit_meets() -> None:
    """The commit gives up a moment before the loss cancels the work: that is no failure of the work."""
    async with a_coordinator() as coordinator:
        worker, attempts = a_worker(coordinator), 0

        async def work(shard: Any) -> None:
            nonlocal attempts
            attempts += 1
            for offset in range(1_000_000):
                await shard.commit(offset)
                await asyncio.sleep(0.05)

        pool = worker.client.worker_pool(GROUP, {"work": 4}, work, session_timeout=SESSION_S)
        async with pool:
            for round_number in range(1, 11):
                await until(lambda least=4 * round_number: attempts >= least)  # type: ignore[misc]
                worker.cable.pull()
                await asyncio.sleep(10)
                worker.cable.plug_in()


@in_virtual_time
@pytest.mark.parametrize("inside", [True, False])
async def test_a_pool_runs_inside_and_outside_of_its_block(inside: bool) -> None:
    async with a_coordinator() as coordinator:
        worker, drained = a_worker(coordinator), []

        async def work(shard: Any) -> None:
            await shard.stopping.wait()
            await asyncio.sleep(0.2)
            drained.append(shard.partition)
            await shard.commit(7)

        pool = worker.client.worker_pool(GROUP, {"work": 4}, work, session_timeout=SESSION_S)

        async def in_block() -> None:
            async with pool:
                await pool.run()

        running = asyncio.create_task(in_block() if inside else pool.run())
        await until(lambda: len(pool.shards) == 4)
        await asyncio.sleep(0.1)
        pool.stop()
        await running
        assert (sorted(drained), worker.leaves) == ([0, 1, 2, 3], 1)
        assert {offset.offset for offset in await worker.client.offsets(GROUP)} == {7}


@in_virtual_time
async def test_a_static_member_that_makes_no_progress_keeps_its_seat() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        member = worker.client.consumer(
            GROUP, TOPICS, session_timeout=SESSION_S, max_processing_interval=1.0, group_instance_id="pod-0"
        )
        async with member:
            await member.wait_assigned()
            await until(lambda: member.assignment is None)
            await asyncio.sleep(0.5)
            assert worker.leaves == 0


@in_virtual_time
async def test_a_slow_assignment_is_cancelled_for_the_current_one() -> None:
    """Its outcome must not replace what the leader knows of the generation that the group works by."""
    async with a_coordinator() as coordinator:
        ends: list[str] = []

        async def assign(generation: Generation) -> dict[str, bytes]:
            try:
                await asyncio.sleep(60 if generation.generation_id == 1 else 0)
            except asyncio.CancelledError:
                ends.append("given up")
                raise
            ends.append("assigned")
            return {member.member_id: b"work" for member in generation.members}

        def a_member(name: str) -> Member[bytes]:
            client = a_worker(coordinator, name).client
            return client.member("own", protocol_type="own", protocols={"v1": b""}, assign=assign)

        async with a_member("first") as first:
            await until(lambda: first.is_leader)
            async with a_member("second") as second:
                await first.wait_assigned()
                await second.wait_assigned()
        assert ends[:2] == ["given up", "assigned"]
