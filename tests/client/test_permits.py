"""Permits and locks against the real coordinator, in virtual time: a body ends before the next one has its permit."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from rota.client import LeadershipLost, Permit, PermitLost, Permits
from tests.client.stage import SESSION_S, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

NAME = "downloads"


def permits(worker: Worker, number: int = 1, **options: object) -> Permits:
    return worker.client.permits(NAME, number, session_timeout=SESSION_S, **options)  # type: ignore[arg-type]


async def hold(held: Permits, diary: list[str], name: str) -> None:
    """A body that works until it is cancelled."""
    async with held as permit:
        diary.append(f"{name} begins {permit.number}")
        try:
            await asyncio.Event().wait()
        finally:
            diary.append(f"{name} ends")


@in_virtual_time
async def test_members_share_permits_and_the_next_gets_a_released_one() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        first = await stack.enter_async_context(permits(a_worker(coordinator, "a"), 2))
        async with permits(a_worker(coordinator, "b"), 2) as second:
            waiting = permits(a_worker(coordinator, "c"), 2)
            entering = asyncio.create_task(stack.enter_async_context(waiting))
            await until(lambda: waiting.place == 1)
            assert ((first.number, second.number), waiting.of, entering.done()) == ((0, 1), 2, False)
            with pytest.raises(RuntimeError, match="no permit was granted yet"):
                _ = waiting.permit
            tokens = first.fencing_token, second.fencing_token

        await entering
        third = waiting.permit
        assert (third.number, waiting.place, third.fencing_token > tokens[1]) == (1, 0, True)
        assert (first.fencing_token, first.is_valid) == (tokens[0], True), (
            "rebalances of others change nothing for a holder"
        )
        assert second.lost.is_set()


@in_virtual_time
async def test_a_cut_off_holder_ends_its_body_before_the_next_begins() -> None:
    async with a_coordinator() as coordinator:
        diary: list[str] = []
        reported: list[Permit] = []
        cut, other = a_worker(coordinator, "cut"), a_worker(coordinator, "other")
        holding = asyncio.create_task(hold(permits(cut, on_lost=reported.append), diary, "cut"))
        await until(lambda: diary == ["cut begins 0"])
        waiting = asyncio.create_task(hold(permits(other), diary, "other"))
        await asyncio.sleep(1)

        cut.cable.pull()
        await until(lambda: len(diary) == 3)

        assert diary == ["cut begins 0", "cut ends", "other begins 0"]
        with pytest.raises(PermitLost, match="the permit was lost"):
            await holding
        assert [(permit.number, permit.is_valid) for permit in reported] == [(0, False)]
        await cancelled(waiting)


@in_virtual_time
async def test_on_lost_is_not_called_for_a_permit_that_is_given_back() -> None:
    async with a_coordinator() as coordinator:
        reported: list[Permit] = []
        async with permits(a_worker(coordinator, "a"), on_lost=reported.append) as permit:
            permit.raise_if_lost()

        assert reported == []
        with pytest.raises(PermitLost):
            permit.raise_if_lost()


@in_virtual_time
async def test_a_body_that_gives_its_permit_back_goes_on_without_it() -> None:
    async with a_coordinator() as coordinator:
        first = permits(a_worker(coordinator, "a"))
        async with first as permit:
            await first.close()
            assert not permit.is_valid
            async with permits(a_worker(coordinator, "b")) as next_one:
                assert next_one.is_valid
        assert permit.lost.is_set()


@in_virtual_time
async def test_run_holds_permits_in_turn_until_its_work_returns() -> None:
    async with a_coordinator() as coordinator:
        worker, tokens = a_worker(coordinator, "a"), list[int]()

        async def work(permit: Permit) -> str:
            tokens.append(permit.fencing_token)
            if len(tokens) == 1:
                worker.cable.pull()
                asyncio.get_running_loop().call_later(3 * SESSION_S, worker.cable.plug_in)
                await asyncio.Event().wait()
            return f"done with {permit.number}"

        assert await permits(worker).run(work, handle_signals=False) == "done with 0"
        assert tokens == sorted(set(tokens))
        assert len(tokens) == 2


@in_virtual_time
async def test_a_wait_of_a_minute_logs_its_place_and_the_holder(caplog: pytest.LogCaptureFixture) -> None:
    """A lock that a program takes twice by mistake is waited for until it ends."""
    caplog.set_level(logging.INFO, "rota.client")
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator, "host")
        held = permits(worker)
        async with held:
            with pytest.raises(TimeoutError):
                await permits(worker, wait_timeout=150.0).start()
            member_id = held._candidacy.member.member_id
            assert (
                caplog.messages.count(
                    f"permits {NAME}: waiting for 60 s: 0 are before this one, and 1 are held by {member_id}"
                )
                == 1
            )
        async with worker.client.leader("writer") as leading, worker.client.leader("writer") as second:
            await until(lambda: leading.is_leader or second.is_leader)
            first = leading if leading.is_leader else second
            await asyncio.sleep(90)
            lines = [line for line in caplog.messages if line.startswith("election writer: waiting")]
            assert lines == [f"election writer: waiting for 60 s: {first.member.member_id} leads"]


async def nothing(_term: object) -> None:
    """Not called."""


@pytest.mark.parametrize("number", [0, -1, 1_000_001, True, 1.0])
@in_virtual_time
async def test_a_number_that_no_group_may_have_is_refused(number: int) -> None:
    async with a_coordinator() as coordinator:
        with pytest.raises(ValueError, match="permits must be a number from 1 to 1000000"):
            permits(a_worker(coordinator, "a"), number)


def test_a_permit_that_is_lost_is_no_lost_leadership() -> None:
    assert not issubclass(PermitLost, LeadershipLost)


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
