"""Metrics of members: calls, heartbeats, rebalances, units and losses; on the real coordinator in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import rota
from rota.client import FencedInstanceId
from tests.client.scrapes import Scrape
from tests.client.stage import GROUP, SESSION_S, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time, pause

# --- calls, heartbeats, rebalances --------------------------------------------------------------


@in_virtual_time
async def test_a_member_that_joins_shows_its_calls_and_what_it_holds() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        assert scrape.of("members") is None
        async with worker.member() as member:
            await member.wait_assigned()
            await asyncio.sleep(10)
            labels = {"rota_namespace": "default", "group_id": GROUP, "kind": "consumer"}
            assert scrape.of("members", **labels) == 1
            assert scrape.of("units_held", **labels) == 12
            assert scrape.of("units_assigned_total", **labels) == 12
            assert scrape.of("calls_total", operation="JoinGroup", outcome="MEMBER_ID_REQUIRED", **labels) == 1
            assert scrape.of("calls_total", operation="JoinGroup", outcome="ok", **labels) == 1
            assert scrape.of("calls_total", operation="SyncGroup", outcome="ok", **labels) == 1
            assert (scrape.of("calls_total", operation="Heartbeat", outcome="ok", **labels) or 0) >= 3
            assert (scrape.of("rebalances_total"), scrape.of("retries_total")) == (None, None)
            assert scrape.of("members_in_trouble", **labels) == 0
        assert scrape.of("calls_total", operation="LeaveGroup", outcome="ok", **labels) == 1
        assert scrape.of("units_revoked_total", **labels) == 12
        assert (scrape.of("members"), scrape.of("units_held"), scrape.of("heartbeat_age_seconds")) == (None, None, None)


@in_virtual_time
async def test_a_call_cancelled_by_its_members_end_is_counted() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            worker.cable.is_silent = True
            sent = len(worker.cable.requests)
            await until(lambda: len(worker.cable.requests) > sent)
        assert scrape.of("calls_total", operation="Heartbeat", outcome="cancelled") == 1
        assert scrape.of("calls_total") == len(worker.cable.requests)


# --- losses ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_an_outage_shows_as_it_lasts_and_when_it_ends() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            await asyncio.sleep(5)
            assert (scrape.of("heartbeat_age_seconds") or 0) <= SESSION_S
            worker.cable.pull()
            await asyncio.sleep(30)
            assert scrape.of("members_in_trouble") == 1
            assert 30 <= (scrape.of("heartbeat_age_seconds") or 0) <= 30 + SESSION_S
            assert scrape.of("rebalances_total") == scrape.of("rebalances_total", cause="lost_deadline") == 1
            assert (scrape.of("units_held"), scrape.of("units_lost_total")) == (0, 12)
            broken = scrape.of("calls_total", outcome="broken") or 0
            # Each repeats one before it, but for the first heartbeat and the first join.
            assert broken >= 10
            assert scrape.of("retries_total") == broken - 2
            worker.cable.plug_in()
            await member.wait_assigned()
            await asyncio.sleep(SESSION_S)
            assert (scrape.of("heartbeat_age_seconds") or 99) < 2
            assert (scrape.of("members_in_trouble"), scrape.of("units_held")) == (0, 12)


@in_virtual_time
async def test_a_loop_that_was_blocked_shows_by_how_much() -> None:
    async with a_coordinator() as coordinator, a_worker(coordinator).client as client:
        scrape = Scrape(client)
        await asyncio.sleep(1)
        assert scrape.of("event_loop_lag_max_seconds") == 0
        pause(3)
        await asyncio.sleep(1)
        assert (scrape.of("event_loop_lag_max_seconds") or 0) > 2
        assert scrape.of("event_loop_lag_seconds") == 0


@in_virtual_time
async def test_removed_and_fenced_members_have_causes_of_their_own() -> None:
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator), a_worker(coordinator, "x")
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            await other.client.remove_member(GROUP, member.member_id)
            await asyncio.sleep(SESSION_S)
            assert scrape.of("rebalances_total", cause="lost_unknown_member") == 1
        with suppress(FencedInstanceId):
            async with worker.member(group_instance_id="pod-0") as member:
                await member.wait_assigned()
                async with other.member(group_instance_id="pod-0"):
                    await until(lambda: member.is_over)
        assert scrape.of("rebalances_total", cause="lost_fenced") == 1
        assert scrape.of("units_lost_total") == 24


# --- kinds ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_each_kind_of_member_has_its_name_and_its_units() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        client, scrape = worker.client, Scrape(worker.client)

        async def work(shard: rota.client.Shard) -> None:
            await shard.stopping.wait()

        async with client.leader("writer") as election, client.worker_pool("pool", {"work": 5}, work) as pool:
            await anext(election.terms())
            await pool.consumer.wait_assigned()
            assert scrape.of("units_held", kind="election", group_id="writer") == 1
            assert scrape.of("units_held", kind="worker_pool", group_id="pool") == 5
            assert scrape.of("members") == 2
            async with client.leader("writer") as second:
                await until(lambda: second.member.assignment is not None)
                assert scrape.of("members", kind="election", group_id="writer") == 2
                assert scrape.of("units_held", kind="election", group_id="writer") == 1
