"""Which members expire and when, with several replicas: none that heartbeats, and each that does not, in time."""

from __future__ import annotations

import asyncio

from rota.core.replica.ports import RELEASED, SeenMembers
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, HeartbeatMany, HeartbeatManyReply, HeartbeatReply, MemberHeartbeat
from rota.server.liveness.memory import MemoryLiveness
from rota.server.runtime.coordinator import RoutedCoordinator
from tests.client.virtual_time import in_virtual_time
from tests.liveness.stage import GROUP, SESSION_S, Fleet, a_worker, members, owner_and_other

OK = {ErrorCode.NONE}


async def expired_at_s(fleet: Fleet) -> float:
    """When the one member that expires does so."""
    while not fleet.events("member_expired"):  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.01)
    (event,) = fleet.events("member_expired")
    return event.at_ms / 1000


async def until_owned(replica: RoutedCoordinator) -> None:
    while not replica.owners():  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.01)


# --- the owner asks before it expires a member -----------------------------------------------------


@in_virtual_time
async def test_a_member_that_only_another_replica_sees_is_not_expired() -> None:
    fleet = Fleet()
    async with owner_and_other(fleet) as (owner, other):
        worker = await a_worker(owner)
        fleet.is_cut = True

        answers = await worker.heartbeats(other, seconds=10 * SESSION_S)

        assert answers == OK
        assert await members(owner) == [worker.member_id]


@in_virtual_time
async def test_a_replica_without_the_owner_reports_no_state() -> None:
    """A member takes a state for the word of a replica that would know of a rebalance."""
    fleet = Fleet()
    async with owner_and_other(fleet) as (owner, other):
        worker = await a_worker(owner)
        beat = Heartbeat(*GROUP, worker.member_id, worker.generation_id)

        forwarded = (await other.call(beat)).reply
        fleet.is_cut = True
        recorded = (await other.call(beat)).reply

        assert forwarded == HeartbeatReply(generation_id=worker.generation_id, state="Stable")
        assert recorded == HeartbeatReply(generation_id=worker.generation_id, state="")


# --- a liveness store that hangs while a replica stops ------------------------------------------------


class Hanging(MemoryLiveness):
    """It answers no read before `answers` is set."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.clock.monotonic_ms)
        self.answers = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def read(self, shard_id: int) -> SeenMembers:
        self.is_asked.set()
        await self.answers.wait()
        return await super().read(shard_id)


@in_virtual_time
async def test_a_replica_that_stops_serves_no_shard_whose_sessions_are_read_late() -> None:
    fleet = Fleet()
    liveness = fleet.liveness = Hanging(fleet)
    async with fleet.replica("r1") as replica:
        await liveness.is_asked.wait()
        await replica.drain()
        liveness.answers.set()
        await asyncio.sleep(0.01)

        assert replica.owners() == []
        assert fleet.tables.owners()[0].lease_until_ms == RELEASED


# --- a liveness store that answers in wrong forms ---------------------------------------------------


class Garbling(MemoryLiveness):
    """It answers everything with what its client cannot read."""

    def _check(self) -> None:
        raise ValueError("not enough values to unpack (expected 3, got 1)")


@in_virtual_time
async def test_a_shard_is_served_whatever_the_liveness_store_answers() -> None:
    fleet = Fleet()
    fleet.liveness = Garbling(fleet.clock.monotonic_ms)
    async with owner_and_other(fleet) as (owner, other):
        worker = await a_worker(owner)
        await fleet.kill(owner)
        answers = {await worker.heartbeat(other)}
        await until_owned(other)

        answers |= await worker.heartbeats(other, seconds=2 * SESSION_S)
        assert answers <= {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert await worker.heartbeat(other) is ErrorCode.NONE
        assert await expired_at_s(fleet) > worker.seen_s + SESSION_S - 0.01
        assert other.ready()[0]


@in_virtual_time
async def test_a_key_that_another_program_overwrites_costs_no_member() -> None:
    fleet = Fleet()
    assert fleet.liveness is not None
    async with owner_and_other(fleet) as (owner, other):
        worker = await a_worker(owner)
        fleet.liveness.spoiled.add(0)
        await worker.heartbeats(owner, seconds=5)
        await fleet.kill(owner)
        await until_owned(other)

        assert await worker.heartbeats(other, seconds=2 * SESSION_S) == OK
        fleet.liveness.spoiled.clear()
        await asyncio.sleep(1.5)
        assert set((await fleet.liveness.read(0)).seen_ms_ago) == {(*GROUP, worker.member_id)}


# --- a shard without an owner ----------------------------------------------------------------------


@in_virtual_time
async def test_without_an_owner_any_replica_keeps_members_alive() -> None:
    fleet = Fleet(lease_s=3 * SESSION_S)
    async with owner_and_other(fleet) as (owner, other):
        worker = await a_worker(owner)
        await fleet.kill(owner)

        answers = await worker.heartbeats(other, seconds=4 * SESSION_S)

        assert answers == OK
        assert await members(other) == [worker.member_id]
        assert fleet.events("member_expired") == []


@in_virtual_time
async def test_a_member_that_is_not_known_has_to_try_again() -> None:
    fleet = Fleet(lease_s=3 * SESSION_S)
    async with owner_and_other(fleet) as (owner, other):
        worker = await a_worker(owner)
        await fleet.kill(owner)
        beats = (MemberHeartbeat(worker.member_id, worker.generation_id), MemberHeartbeat("stranger", 1))

        reply = (await other.call(HeartbeatMany(*GROUP, beats))).reply
        worker.member_id = "stranger"
        alone = await worker.heartbeat(other)

        assert isinstance(reply, HeartbeatManyReply)
        assert [(e.member_id, e.error) for e in reply.errors] == [("stranger", ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        assert alone is ErrorCode.COORDINATOR_NOT_AVAILABLE


@in_virtual_time
async def test_members_stay_while_the_store_is_away_from_everybody() -> None:
    fleet = Fleet()
    async with owner_and_other(fleet) as (owner, other):
        worker = await a_worker(owner)
        fleet.is_store_away = True
        # Long enough for every lease to run out.
        await worker.heartbeats(owner, seconds=2 * fleet.lease_ms / 1000)

        assert await worker.heartbeats(owner, seconds=2 * SESSION_S) == OK
        assert await worker.heartbeats(other, seconds=2 * SESSION_S) == OK
        fleet.is_store_away = False
        await asyncio.sleep(0.8 * SESSION_S)
        assert await worker.heartbeat(other) is ErrorCode.NONE
        assert fleet.events("member_expired") == []


# --- taking over -----------------------------------------------------------------------------------


@in_virtual_time
async def test_two_owners_that_die_after_an_outage_expire_no_member() -> None:
    fleet = Fleet()
    async with owner_and_other(fleet) as (owner, other):
        worker = await a_worker(owner)
        await asyncio.sleep(SESSION_S / 2)
        await fleet.kill(other)
        await fleet.kill(owner)
    await asyncio.sleep(3_600)
    async with fleet.replica("r3") as second:
        await until_owned(second)
        await asyncio.sleep(0.5)
        await fleet.kill(second)
    async with fleet.replica("r4") as third:
        await until_owned(third)
        await asyncio.sleep(SESSION_S / 2)

        assert await worker.heartbeat(third) is ErrorCode.NONE


# --- a liveness store that forgets, or is away -------------------------------------------------------


@in_virtual_time
async def test_a_forgetful_liveness_store_expires_no_live_member() -> None:
    fleet = Fleet()
    assert fleet.liveness is not None
    async with owner_and_other(fleet) as (owner, other):
        worker = await a_worker(owner)
        for _ in range(20):
            fleet.liveness.forget()
            assert await worker.heartbeats(other, seconds=3.3) == OK

        fleet.liveness.forget()
        await fleet.kill(owner)
        await until_owned(other)
        await asyncio.sleep(0.9 * SESSION_S)
        assert await worker.heartbeat(other) is ErrorCode.NONE
