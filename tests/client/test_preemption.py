"""Elections by priority, with candidates of the SDK: the body of the leader ends before the better candidate leads."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rota.client import Client, Election, Term
from rota.client.election import CandidateRole
from rota.core.types.leader import decode_candidate
from rota.protocol.messages import Heartbeat, RebalanceGroup
from tests.client.stage import SESSION_S, a_coordinator, until
from tests.client.test_election import NAME, Candidate, ended
from tests.client.virtual_time import in_virtual_time

HOLD_S = 5.0


class Ranked(Candidate):
    """A candidate with a priority."""

    def __init__(self, coordinator: object, name: str, priority: int = 0, hold_s: float | None = HOLD_S) -> None:
        super().__init__(coordinator, name)  # type: ignore[arg-type]
        self.priority, self.hold_s = priority, hold_s
        self.drain_s = 0.0
        self.saw_stopping: list[bool] = []

    def election(self, group_instance_id: str | None = None) -> Election:
        client: Client = self.client
        return client.leader(
            NAME,
            session_timeout=SESSION_S,
            group_instance_id=group_instance_id,
            priority=self.priority,
            preempt_after=self.hold_s,
        )

    async def campaign(self, stack: AsyncExitStack) -> asyncio.Task[None]:
        election = await stack.enter_async_context(self.election())
        task = asyncio.create_task(election.run(self.write, drain_timeout=self.drain_s))
        stack.push_async_callback(ended, task)
        return task


class Finishing(Ranked):
    """Ends by itself some time after it was asked to."""

    takes_s = 0.0

    async def write(self, term: Term) -> None:
        self.note("begins", term.fencing_token)
        try:
            await term.stopping.wait()
            await asyncio.sleep(self.takes_s)
            self.saw_stopping.append(term.is_valid)
            term.raise_if_lost()
        finally:
            self.note("ends", term.fencing_token)
        await asyncio.Event().wait()


@in_virtual_time
async def test_a_better_candidate_leads_after_the_leaders_body_ended() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        low, high = Ranked(coordinator, "low"), Ranked(coordinator, "high", 10)
        low.ending_s = 2.0
        await low.campaign(stack)
        await until(lambda: low.deeds == ["begins"])
        await high.campaign(stack)
        joined_at = asyncio.get_running_loop().time()

        await until(lambda: high.deeds == ["begins"])

        assert low.deeds == ["begins", "ends"]
        assert low.when("ends") <= high.when("begins")
        assert high.when("begins") - joined_at >= HOLD_S + low.ending_s
        assert low.diary[-1][2] < high.diary[0][2]


@in_virtual_time
async def test_work_may_drain_while_its_term_is_valid() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        low, high = Finishing(coordinator, "low"), Ranked(coordinator, "high", 10, hold_s=0)
        low.drain_s, low.takes_s = 30.0, 3 * SESSION_S
        await low.campaign(stack)
        await until(lambda: low.deeds == ["begins"])
        await high.campaign(stack)

        await until(lambda: low.deeds == ["begins", "ends"])
        assert high.deeds == []

        await until(lambda: high.deeds == ["begins"])
        assert low.saw_stopping == [True]


@in_virtual_time
async def test_a_leader_cut_off_in_a_hand_over_ends_by_its_deadline() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        low, high = Finishing(coordinator, "low"), Ranked(coordinator, "high", 10, hold_s=0)
        low.drain_s, low.takes_s = 600.0, 300.0
        await low.campaign(stack)
        await until(lambda: low.deeds == ["begins"])
        await high.campaign(stack)
        await asyncio.sleep(2)
        low.cable.pull()
        cut_at = asyncio.get_running_loop().time()

        await until(lambda: high.deeds == ["begins"])

        assert low.deeds == ["begins", "ends"]
        assert cut_at < low.when("ends") < cut_at + SESSION_S
        assert low.when("ends") < high.when("begins")


@in_virtual_time
async def test_a_leader_asked_twice_while_its_work_ends_hands_over() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        first, second = Finishing(coordinator, "first"), Ranked(coordinator, "second")
        first.drain_s, first.takes_s = 600.0, 2.0
        await first.campaign(stack)
        await until(lambda: first.deeds == ["begins"])
        await second.campaign(stack)
        await asyncio.sleep(1)

        for _ in range(2):
            await coordinator.call(RebalanceGroup("default", NAME, step_down=True))
            await asyncio.sleep(0.5)
        await until(lambda: second.deeds == ["begins"])

        assert first.when("ends") <= second.when("begins")


@in_virtual_time
async def test_a_leader_asked_before_it_knows_that_it_leads_hands_over() -> None:
    """The answer to its join was lost. Its next join does not name the generation, so it leads before it hands over."""
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        first, second = Ranked(coordinator, "first"), Ranked(coordinator, "second")
        first.cable.electing_s = None
        await first.campaign(stack)
        await second.campaign(stack)
        await until(lambda: Heartbeat in map(type, second.cable.requests))
        assert (first.deeds, second.deeds) == ([], [])

        await coordinator.call(RebalanceGroup("default", NAME, step_down=True))
        first.cable.electing_s = 0.0
        await until(lambda: second.deeds == ["begins"])

        assert first.deeds[-1:] != ["begins"]


def test_the_metadata_of_the_user_is_kept() -> None:
    role = CandidateRole(b'{"endpoint": "http://a", "zone": "z1"}', priority=3, preempt_after=None)
    (protocol,) = role.protocols(("leader",), 1)
    assert b'"zone":"z1"' in protocol.metadata
    said = decode_candidate(protocol.metadata)
    assert (said.endpoint, said.priority, said.preempt_after_ms, said.holding) == ("http://a", 3, None, True)

    opaque = CandidateRole(b"10.0.0.1:80")
    assert opaque.protocols(None, -1)[0].metadata == b"10.0.0.1:80"


def test_settings_that_no_coordinator_would_find_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON object"):
        CandidateRole(b"10.0.0.1:80", priority=1)
    with pytest.raises(ValueError, match="preempt_after"):
        CandidateRole(preempt_after=-1)
