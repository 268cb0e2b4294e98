"""Elections against the real coordinator, in virtual time: one leads, and its body ends before the next one leads."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rota.client import Election, LeadershipLost, Term
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import Heartbeat, RebalanceGroup
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import SESSION_S, Cable, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

NAME = "billing-writer"


class Candidate:
    """Campaigns, and writes down its terms."""

    def __init__(self, coordinator: LocalCoordinator, name: str) -> None:
        worker = a_worker(coordinator, name)
        self.client = worker.client
        self.cable: Cable = worker.cable
        self.diary: list[tuple[float, str, int]] = []
        self.ending_s = 0.0
        """How long its body takes to end."""

    def election(self, group_instance_id: str | None = None) -> Election:
        return self.client.leader(NAME, session_timeout=SESSION_S, group_instance_id=group_instance_id)

    async def write(self, term: Term) -> None:
        """Leads until the test ends it."""
        self.note("begins", term.fencing_token)
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.sleep(self.ending_s)
            finally:
                self.note("ends", term.fencing_token)

    def note(self, what: str, token: int) -> None:
        self.diary.append((asyncio.get_running_loop().time(), what, token))

    @property
    def deeds(self) -> list[str]:
        return [what for _, what, _ in self.diary]

    def when(self, what: str) -> float:
        return next(at for at, deed, _ in reversed(self.diary) if deed == what)

    async def campaign(self, stack: AsyncExitStack) -> asyncio.Task[None]:
        """Run `write` in every term, until the test is over."""
        election = await stack.enter_async_context(self.election())
        task = asyncio.create_task(election.run(self.write))
        stack.push_async_callback(ended, task)
        return task


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))


@in_virtual_time
async def test_a_deposed_leader_never_reads_its_successors_token() -> None:
    """It holds its term while it joins, and is in the next generation before its term ends."""
    async with a_coordinator() as coordinator:
        deposed, successor = Candidate(coordinator, "deposed"), Candidate(coordinator, "successor")
        async with deposed.election() as election, successor.election() as other:
            term, read = await anext(election.terms()), set[int]()
            await other.member.wait_assigned()
            await coordinator.call(RebalanceGroup("default", NAME, step_down=True))
            while not term.lost.is_set():
                read.add(term.fencing_token)
                await asyncio.sleep(0)

            assert max(read) < (await anext(other.terms())).fencing_token


@in_virtual_time
async def test_a_cut_off_leader_ends_its_body_before_the_next_leads() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        first, second = Candidate(coordinator, "first"), Candidate(coordinator, "second")
        await first.campaign(stack)
        await until(lambda: first.deeds == ["begins"])
        await second.campaign(stack)
        await asyncio.sleep(1)
        first.cable.pull()
        await until(lambda: second.deeds == ["begins"])
        assert first.deeds == ["begins", "ends"]
        assert first.when("ends") < second.when("begins")
        assert first.diary[-1][2] < second.diary[-1][2]


@in_virtual_time
async def test_a_lost_terms_body_is_cancelled_with_the_reason() -> None:
    async with a_coordinator() as coordinator:
        candidate = Candidate(coordinator, "a")
        async with candidate.election() as election:
            term = await anext(election.terms())
            with pytest.raises(LeadershipLost, match="lost"):
                await be_cut_off(term, candidate.cable)
            assert not term.is_valid
            assert term.valid_until is None
            with pytest.raises(LeadershipLost):
                term.raise_if_lost()
            candidate.cable.plug_in()


async def be_cut_off(term: Term, cable: Cable) -> None:
    async with term:
        cable.pull()
        await asyncio.Event().wait()


@in_virtual_time
async def test_a_short_outage_does_not_end_a_term() -> None:
    async with a_coordinator() as coordinator:
        candidate = Candidate(coordinator, "a")
        async with candidate.election() as election:
            async with await anext(election.terms()) as term:
                candidate.cable.pull()
                await until(lambda: election.unreachable_since is not None)
                await asyncio.sleep(1)
                candidate.cable.plug_in()
                await until(lambda: election.unreachable_since is None)
                assert (term.is_valid, term.fencing_token) == (True, fencing_token(1))


@in_virtual_time
async def test_resigning_ends_the_body_and_the_next_one_leads() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        first, second = Candidate(coordinator, "first"), Candidate(coordinator, "second")
        first.ending_s = 0.5
        election = await stack.enter_async_context(first.election())
        running = asyncio.create_task(election.run(first.write))
        stack.push_async_callback(ended, running)
        await until(lambda: first.deeds == ["begins"])
        await second.campaign(stack)
        await asyncio.sleep(1)
        resigned_at = asyncio.get_running_loop().time()
        await election.resign()
        await until(lambda: second.deeds == ["begins"])
        assert first.when("ends") <= second.when("begins") < resigned_at + 1
        await election.member.wait_assigned()
        assert (election.is_leader, election.member.member_id != "") == (False, True)


@in_virtual_time
@pytest.mark.parametrize("for_good", [True, False])
async def test_leadership_that_comes_during_a_resignation_is_declined(for_good: bool) -> None:
    """As where the group is about to agree on its next generation: nothing would end the term that it begins."""
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        first, second = Candidate(coordinator, "first"), Candidate(coordinator, "second")
        block = await stack.enter_async_context(AsyncExitStack())
        election = await block.enter_async_context(first.election())
        running = asyncio.create_task(election.run(first.write))
        stack.push_async_callback(ended, running)
        await until(lambda: first.deeds == ["begins"])
        first.cable.electing_s, first.ending_s = 0.3, 0.5
        await second.campaign(stack)
        await until(lambda: Heartbeat in map(type, second.cable.requests))

        await (block.aclose() if for_good else election.resign())
        await until(lambda: second.deeds == ["begins"])

        assert first.deeds == ["begins", "ends"]
        if for_good:
            with pytest.raises(LeadershipLost):
                await running
            return
        second.cable.pull()
        await until(lambda: first.deeds == ["begins", "ends", "begins"])


@in_virtual_time
async def test_leaving_the_block_hands_over_at_once() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        second = Candidate(coordinator, "second")
        async with Candidate(coordinator, "first").election() as election:
            await anext(election.terms())
            await second.campaign(stack)
            await asyncio.sleep(1)
            left_at = asyncio.get_running_loop().time()
        await until(lambda: second.deeds == ["begins"])
        assert second.when("begins") < left_at + 0.2


@in_virtual_time
async def test_a_static_candidate_leads_while_another_is_silent() -> None:
    """The token of its first term is its own, since it was a candidate before: nothing more is asked of the others."""
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        static, silent = Candidate(coordinator, "static"), Candidate(coordinator, "silent")
        async with Candidate(coordinator, "first").election() as leading:
            await anext(leading.terms())
            election = await stack.enter_async_context(static.election("pod-0"))
            stack.push_async_callback(ended, asyncio.create_task(election.run(static.write)))
            await until(lambda: election.member.assignment is not None)
            await silent.campaign(stack)
            await asyncio.sleep(1)
            silent.cable.is_silent = True
            left_at = asyncio.get_running_loop().time()
        await until(lambda: static.deeds == ["begins"])
        silent.cable.is_silent = False
        assert static.when("begins") < left_at + 0.2


@in_virtual_time
async def test_what_the_work_returns_or_raises_comes_out_of_run() -> None:
    async with a_coordinator() as coordinator, Candidate(coordinator, "a").election() as election:

        async def answer(term: Term) -> int:
            return term.fencing_token

        async def fail(term: Term) -> None:
            raise ZeroDivisionError

        assert await election.run(answer) == fencing_token(1)
        with pytest.raises(ZeroDivisionError):
            await election.run(fail)
