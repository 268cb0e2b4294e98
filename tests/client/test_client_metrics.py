"""The SDK's metrics, on the real coordinator in virtual time, as Prometheus' own parser reads them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

import rota
from rota.adapters.prometheus import register, unregister
from rota.client import Client, FencedInstanceId, MembershipLost, OffsetMetadataTooLarge, OffsetToCommit, sync
from rota.client.exported import HasStats
from rota.client.metrics import METRICS, MOST_GROUPS
from rota.protocol.messages import CommitOffsets
from tests.client.stage import GROUP, SESSION_MS, TOPICS, a_coordinator, a_worker, all_partitions_are_shared, until
from tests.client.test_connect_worker import WORK, run_all
from tests.client.virtual_time import in_virtual_time, stand_still


class Scrape:
    """What Prometheus would read of some clients now."""

    def __init__(self, *clients: HasStats) -> None:
        self.registry = CollectorRegistry()
        for client in clients:
            register(client, self.registry)

    def samples(self, metric: str, **labels: str) -> Iterator[float]:
        text = generate_latest(self.registry).decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"rota_client_{metric}" and labels.items() <= sample.labels.items():
                    yield sample.value

    def of(self, metric: str, **labels: str) -> float | None:
        """The sum of the samples with these labels; None where there is none."""
        found = list(self.samples(metric, **labels))
        return sum(found) if found else None


class SlowRegistry(CollectorRegistry):
    """Takes its time to register a collector."""

    def __init__(self) -> None:
        super().__init__()
        self.is_entered, self.may_go_on = threading.Event(), threading.Event()
        self.registered = 0

    def register(self, collector: Collector) -> None:
        self.registered += 1
        self.is_entered.set()
        assert self.may_go_on.wait(10)
        super().register(collector)


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
async def test_the_counted_calls_are_those_that_were_sent() -> None:
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator), a_worker(coordinator, "x")
        scrape = Scrape(worker.client)
        await worker.client.put_topic("work", 12)
        async with worker.client.consumer(GROUP, "work", "range") as member, other.member() as second:
            await all_partitions_are_shared([member, second])
            await member.commit([OffsetToCommit(*place, 5) for place in member.assignment or ()])
            await worker.client.describe_group(GROUP)
            await asyncio.sleep(20)
        operations = {type(request).__name__ for request in worker.cable.requests}
        assert {"ListTopics", "JoinGroup", "CommitOffsets", "LeaveGroup", "DescribeGroup"} <= operations
        for operation in operations:
            sent = sum(type(request).__name__ == operation for request in worker.cable.requests)
            assert scrape.of("calls_total", operation=operation) == sent, operation


@in_virtual_time
async def test_a_call_that_the_end_of_its_member_cancels_is_counted_too() -> None:
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


@in_virtual_time
async def test_a_retry_that_never_ends_is_counted_too() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            worker.cable.is_silent = True
            await until(lambda: scrape.of("calls_total", operation="Heartbeat", outcome="cancelled") == 1)
            assert scrape.of("calls_total", operation="Heartbeat", outcome="broken") == 1
            assert scrape.of("retries_total", operation="Heartbeat") == 1
            worker.cable.is_silent = False


@in_virtual_time
async def test_a_candidate_that_resigns_steps_aside() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.client.leader("writer") as election:
            await anext(election.terms())
            await asyncio.sleep(10)
            await election.resign(pause_s=60)
            assert scrape.of("rebalances_total", cause="stepped_aside") == scrape.of("rebalances_total") == 1
            assert (scrape.of("units_revoked_total"), scrape.of("heartbeat_age_seconds")) == (1, None)


@in_virtual_time
async def test_a_second_member_is_a_rebalance_of_the_first_by_the_group() -> None:
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator), a_worker(coordinator, "x")
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            async with other.member() as second:
                await all_partitions_are_shared([member, second])
                assert scrape.of("rebalances_total", cause="group") == 1
                assert scrape.of("units_revoked_total") == 12
                assert scrape.of("units_assigned_total") == 18
                assert scrape.of("units_held") == 6
            assert scrape.of("rebalances_total") == scrape.of("rebalances_total", cause="group")


@in_virtual_time
async def test_a_second_cooperative_round_is_told_apart_from_the_first() -> None:
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator), a_worker(coordinator, "x")
        scrape = Scrape(worker.client)
        strategy = "cooperative-sticky"
        async with worker.member(strategy=strategy) as member:
            await member.wait_assigned()
            async with other.member(strategy=strategy) as second:
                await all_partitions_are_shared([member, second])
                assert scrape.of("rebalances_total", cause="group") == 1
                assert scrape.of("rebalances_total", cause="second_round") == 1
                assert (scrape.of("units_revoked_total"), scrape.of("units_held")) == (6, 6)


@pytest.mark.parametrize(("strategy", "cause"), [("roundrobin", "resync"), ("cooperative-sticky", "topics_changed")])
@in_virtual_time
async def test_a_topic_that_grows_is_a_resync_where_no_join_is_needed(strategy: str, cause: str) -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        scrape = Scrape(client)
        await client.put_topic("documents", 2)
        async with client.consumer(GROUP, "documents", strategy) as consumer:
            await consumer.wait_assigned()
            await client.put_topic("documents", 3)
            await until(lambda: len(consumer.assignment or ()) == 3)
            assert scrape.of("rebalances_total", cause=cause) == scrape.of("rebalances_total") == 1
            assert scrape.of("calls_total", operation="PutTopic", kind="client", group_id="", outcome="ok") == 2


@in_virtual_time
async def test_a_rejoin_of_the_program_is_counted_as_requested_whatever_its_reason() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            for number in range(3):
                await member.wait_assigned()
                member.rejoin(f"reason {number}")
                await until(lambda number=number: member.generation_id > number + 1)  # type: ignore[misc]
            assert scrape.of("rebalances_total", cause="requested") == scrape.of("rebalances_total") == 3


@in_virtual_time
async def test_an_assignment_that_fails_is_one_rebalance_of_its_cause() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        is_broken = True

        def assign(members: object, generation_id: int) -> dict[str, bytes]:
            if is_broken:
                raise ValueError("no plan")
            return {member.member_id: b"all" for member in members}  # type: ignore[attr-defined]

        async with worker.client.member("g", protocol_type="own", protocols={"p": b""}, assign=assign) as member:
            await asyncio.sleep(1)
            is_broken = False
            await member.wait_assigned()
            failed = scrape.of("calls_total", operation="SyncGroup", outcome="ASSIGNMENT_FAILED") or 1
            assert scrape.of("rebalances_total", cause="assignment_failed") == failed >= 1
            assert scrape.of("units_held", kind="member") == 1


# --- losses ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_an_outage_shows_as_it_lasts_and_when_it_ends() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            await asyncio.sleep(5)
            assert (scrape.of("heartbeat_age_seconds") or 0) <= SESSION_MS / 1000
            worker.cable.pull()
            await asyncio.sleep(30)
            assert scrape.of("members_in_trouble") == 1
            assert 30 <= (scrape.of("heartbeat_age_seconds") or 0) <= 30 + SESSION_MS / 1000
            assert scrape.of("rebalances_total") == scrape.of("rebalances_total", cause="lost_deadline") == 1
            assert (scrape.of("units_held"), scrape.of("units_lost_total")) == (0, 12)
            broken = scrape.of("calls_total", outcome="broken") or 0
            # Each repeats one before it, but for the first heartbeat and the first join.
            assert broken >= 10
            assert scrape.of("retries_total") == broken - 2
            worker.cable.plug_in()
            await member.wait_assigned()
            await asyncio.sleep(SESSION_MS / 1000)
            assert (scrape.of("heartbeat_age_seconds") or 99) < 2
            assert (scrape.of("members_in_trouble"), scrape.of("units_held")) == (0, 12)


@in_virtual_time
async def test_a_member_that_never_gets_in_has_been_without_a_heartbeat_since_its_start() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        worker.cable.pull()
        async with worker.member() as member:
            await asyncio.sleep(60)
            assert scrape.of("heartbeat_age_seconds") == pytest.approx(60, abs=0.01)
            worker.cable.plug_in()
            await member.wait_assigned()
            await asyncio.sleep(SESSION_MS / 1000)
            assert (scrape.of("heartbeat_age_seconds") or 99) < 2


@in_virtual_time
async def test_a_first_join_that_is_not_answered_counts_as_time_without_a_heartbeat() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        worker.cable.is_silent = True
        async with worker.member():
            await asyncio.sleep(1)
            assert (scrape.of("calls_total"), scrape.of("heartbeat_age_seconds")) == (None, 1)
            worker.cable.is_silent = False


@in_virtual_time
async def test_a_candidate_that_cannot_come_back_has_been_without_a_heartbeat_since_it_tried() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.client.leader("writer") as election:
            await anext(election.terms())
            await election.resign(pause_s=20)
            assert scrape.of("heartbeat_age_seconds") is None
            worker.cable.pull()
            await asyncio.sleep(30)
            assert scrape.of("heartbeat_age_seconds") == pytest.approx(30, abs=2)
            worker.cable.plug_in()


@in_virtual_time
async def test_counters_of_units_begin_with_zero() -> None:
    """Prometheus sees no increase in the first value of a series: the first loss of a group would go unnoticed."""
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member():
            counters = [scrape.of(f"units_{what}_total", group_id=GROUP) for what in ("assigned", "revoked", "lost")]
            assert counters == [0, 0, 0]


@in_virtual_time
async def test_units_are_not_held_past_the_deadline_though_the_loop_had_no_time_to_notice() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            assert scrape.of("units_held") == 12
            stand_still(SESSION_MS / 1000)
            assert scrape.of("units_held") == 0
            await asyncio.sleep(0.1)
            assert scrape.of("units_lost_total") == 12


@in_virtual_time
async def test_a_loop_that_was_blocked_shows_by_how_much() -> None:
    async with a_coordinator() as coordinator, a_worker(coordinator).client as client:
        scrape = Scrape(client)
        await asyncio.sleep(1)
        assert scrape.of("event_loop_lag_max_seconds") == 0
        stand_still(3)
        await asyncio.sleep(1)
        assert (scrape.of("event_loop_lag_max_seconds") or 0) > 2
        assert scrape.of("event_loop_lag_seconds") == 0


@in_virtual_time
async def test_a_removed_member_and_a_fenced_one_have_causes_of_their_own() -> None:
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator), a_worker(coordinator, "x")
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            await other.client.remove_member(GROUP, member.member_id)
            await asyncio.sleep(SESSION_MS / 1000)
            assert scrape.of("rebalances_total", cause="lost_unknown_member") == 1
        with suppress(FencedInstanceId):
            async with worker.member(group_instance_id="pod-0") as member:
                await member.wait_assigned()
                async with other.member(group_instance_id="pod-0"):
                    await until(lambda: member.is_over)
        assert scrape.of("rebalances_total", cause="lost_fenced") == 1
        assert scrape.of("units_lost_total") == 24


@in_virtual_time
async def test_a_member_without_progress_steps_out_and_shows_no_heartbeat_until_it_is_back() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        scrape = Scrape(client)
        async with client.consumer(
            GROUP, TOPICS, session_timeout_ms=SESSION_MS, max_processing_interval_ms=10_000
        ) as consumer:
            await consumer.wait_assigned()
            await asyncio.sleep(15)
            assert scrape.of("rebalances_total", cause="no_progress") == 1
            assert (scrape.of("units_lost_total"), scrape.of("units_held")) == (12, 0)
            assert scrape.of("heartbeat_age_seconds") is None
            consumer.progress()
            await consumer.wait_assigned()
            await asyncio.sleep(SESSION_MS / 1000)
            assert scrape.of("heartbeat_age_seconds") is not None
            assert scrape.of("rebalances_total") == 1


# --- commits --------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_commit_that_waits_is_lag_until_it_is_made() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            assert (scrape.of("commit_lag_seconds"), scrape.of("commit_age_seconds")) == (0, None)
            worker.cable.commits_may_go.clear()
            first = asyncio.create_task(member.commit([OffsetToCommit("work", 1, 5)]))
            await asyncio.sleep(2)
            second = asyncio.create_task(member.commit([OffsetToCommit("work", 2, 5)]))
            await asyncio.sleep(0.5)
            assert scrape.of("commit_lag_seconds") == pytest.approx(2.5, abs=0.01)
            worker.cable.commits_may_go.set()
            await asyncio.gather(first, second)
            await asyncio.sleep(1)
            assert scrape.of("commit_lag_seconds") == 0
            assert scrape.of("commit_age_seconds") == pytest.approx(1, abs=0.01)
            assert scrape.of("commits_total", outcome="ok") == scrape.of("commits_total") == 2


@in_virtual_time
async def test_stored_progress_is_lag_until_it_is_committed() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        scrape = Scrape(client)
        async with client.consumer(GROUP, TOPICS, session_timeout_ms=SESSION_MS) as consumer:
            await consumer.wait_assigned()
            consumer.store("work", 3, 1)
            await asyncio.sleep(4)
            consumer.store("work", 3, 2)
            assert scrape.of("commit_lag_seconds") == pytest.approx(4, abs=0.01)
            await consumer.commit()
            assert scrape.of("commit_lag_seconds") == 0
            await asyncio.sleep(4)
            consumer.store("work", 3, 3)
            assert scrape.of("commit_lag_seconds") == 0


@in_virtual_time
async def test_stored_progress_keeps_its_age_while_its_commit_waits() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as consumer:
            await consumer.wait_assigned()
            consumer.store("work", 3, 1)
            await asyncio.sleep(4)
            worker.cable.commits_may_go.clear()
            consumer.commit_soon()
            await asyncio.sleep(1)
            assert scrape.of("commit_lag_seconds") == pytest.approx(5, abs=0.01)
            worker.cable.commits_may_go.set()
            await until(lambda: scrape.of("commits_total") == 1)
            assert scrape.of("commit_lag_seconds") == 0


@in_virtual_time
async def test_progress_that_is_stored_during_a_failed_commit_is_as_old_as_what_the_commit_had() -> None:
    """A busy consumer always stores something meanwhile: else its lag would never grow, though no commit succeeds."""
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as consumer:
            await consumer.wait_assigned()
            consumer.store("work", 3, 1)
            await asyncio.sleep(4)
            worker.cable.commits_may_go.clear()
            consumer.commit_soon([OffsetToCommit("work", 3, 2, metadata="x" * 100_000)])
            await asyncio.sleep(1)
            consumer.store("work", 3, 3)
            worker.cable.commits_may_go.set()
            await until(lambda: scrape.of("commits_total") == 1)
            assert scrape.of("commit_lag_seconds") == pytest.approx(5, abs=0.01)
            await consumer.commit()
            assert scrape.of("commit_lag_seconds") == 0


@in_virtual_time
async def test_a_commit_that_is_repeated_and_one_that_is_too_late_are_told_apart() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            worker.cable.lost_answers = [CommitOffsets]
            await member.commit([OffsetToCommit("work", 1, 5)])
            labels = {"operation": "CommitOffsets"}
            assert scrape.of("calls_total", outcome="broken", **labels) == scrape.of("retries_total", **labels) == 1
            worker.cable.pull()
            await until(lambda: member.assignment is None)
            with pytest.raises(MembershipLost):
                await member.commit([OffsetToCommit("work", 1, 6)])
            assert scrape.of("commits_total", outcome="ok") == 1
            assert scrape.of("commits_total", outcome="not_held") == 1
            worker.cable.plug_in()


@in_virtual_time
async def test_a_commit_that_the_coordinator_rejects_ends_with_its_code() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            with pytest.raises(OffsetMetadataTooLarge):
                await member.commit([OffsetToCommit("work", 1, 5, metadata="x" * 100_000)])
            assert scrape.of("commits_total", outcome="OFFSET_METADATA_TOO_LARGE") == scrape.of("commits_total") == 1
            assert scrape.of("commit_age_seconds") is None


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


@in_virtual_time
async def test_a_connect_worker_counts_connectors_and_tasks() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        scrape = Scrape(client)
        async with client.connect_worker("connect", WORK) as worker:
            await until(lambda: run_all([worker]))
            assert scrape.of("units_held", kind="connect_worker", group_id="connect") == len(WORK)


# --- clients --------------------------------------------------------------------------------------


@in_virtual_time
async def test_calls_of_no_member_are_counted_with_their_retries() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        worker.cable.throttled_ms = 10
        await worker.client.list_groups()
        labels = {"kind": "client", "group_id": "", "operation": "ListGroups"}
        assert scrape.of("calls_total", outcome="THROTTLED", **labels) == 1
        assert scrape.of("calls_total", outcome="ok", **labels) == 1
        assert scrape.of("retries_total", **labels) == 1


@in_virtual_time
async def test_clients_of_one_registry_are_added_up_and_a_counter_never_falls() -> None:
    async with a_coordinator() as coordinator:
        first, second = a_worker(coordinator), a_worker(coordinator, "x")
        scrape = Scrape(first.client, second.client, first.client)
        async with first.client, first.member() as member:
            await member.wait_assigned()
            async with second.client, second.member() as other:
                await all_partitions_are_shared([member, other])
                assert (scrape.of("members"), scrape.of("units_held")) == (2, 12)
                assert list(scrape.samples("units_held")) == [12]
                calls = scrape.of("calls_total") or 0
            assert (scrape.of("members"), scrape.of("calls_total", operation="LeaveGroup")) == (1, 1)
            assert (scrape.of("calls_total") or 0) > calls
            calls = scrape.of("calls_total") or 0
        assert scrape.of("members") is None
        assert (scrape.of("calls_total") or 0) > calls


@in_virtual_time
async def test_a_client_that_is_unregistered_leaves_its_counters() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            unregister(worker.client, scrape.registry)
            calls = scrape.of("calls_total")
            assert (scrape.of("members"), scrape.of("units_assigned_total")) == (None, 12)
        assert scrape.of("calls_total") == calls


@in_virtual_time
async def test_a_program_with_ever_new_groups_has_a_bounded_number_of_series() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        scrape = Scrape(client)
        for number in range(MOST_GROUPS + 20):
            async with client.leader(f"lock-{number}") as election:
                await anext(election.terms())
        assert scrape.of("units_assigned_total") == MOST_GROUPS + 20
        assert scrape.of("units_assigned_total", group_id="") == 20
        assert len(list(scrape.samples("units_assigned_total"))) == MOST_GROUPS + 1


@in_virtual_time
async def test_a_program_with_a_client_for_each_of_many_groups_has_a_bounded_number_of_series_too() -> None:
    async with a_coordinator() as coordinator:
        scrape = Scrape()
        for number in range(MOST_GROUPS + 20):
            client = a_worker(coordinator).client
            register(client, scrape.registry)
            async with client, client.leader(f"lock-{number}") as election:
                await anext(election.terms())
        assert scrape.of("units_assigned_total") == MOST_GROUPS + 20
        assert scrape.of("units_assigned_total", group_id="", rota_namespace="") == 20
        assert len(list(scrape.samples("units_assigned_total"))) == MOST_GROUPS + 1
        assert scrape.of("units_assigned_total", group_id="lock-0") == 1


@in_virtual_time
async def test_every_metric_of_the_table_is_shown_and_no_other() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            await member.commit([OffsetToCommit("work", 1, 5)])
            worker.cable.pull()
            await until(lambda: member.assignment is None)
            worker.cable.plug_in()
            await member.wait_assigned()
            member.rejoin("to revoke")
            await asyncio.sleep(2 * SESSION_MS / 1000)
            text = generate_latest(scrape.registry).decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert set(families) == {metric.name.removesuffix("_total") for metric in METRICS}
        for metric in METRICS:
            family = families[metric.name.removesuffix("_total")]
            assert family.type == metric.type_in_prometheus
            assert {frozenset(sample.labels) for sample in family.samples} == {frozenset(metric.labels)}, metric.name


def test_a_registry_that_has_such_names_already_rejects_each_client_not_only_the_first() -> None:
    registry = CollectorRegistry()
    other = Gauge("rota_client_members", "Of the program.", registry=registry)
    client = rota.connect("http://localhost:1")
    for _ in range(2):
        with pytest.raises(ValueError, match="Duplicated timeseries"):
            register(client, registry)
    registry.unregister(other)
    register(client, registry)
    assert b"rota_client_members gauge" in generate_latest(registry)


# --- threads --------------------------------------------------------------------------------------


def test_clients_that_several_threads_register_at_once_share_a_collector() -> None:
    clients = [rota.connect("http://localhost:1") for _ in range(2)]
    registry = SlowRegistry()

    with ThreadPoolExecutor() as threads:
        first = threads.submit(register, clients[0], registry)
        assert registry.is_entered.wait(10)
        second = threads.submit(register, clients[1], registry)
        # The second thread needs the lock of the first; without one, it is through at once.
        wait([second], timeout=0.1)
        registry.may_go_on.set()
        assert [first.result(10), second.result(10)] == [None, None]
    assert registry.registered == 1


def test_the_sync_twin_is_registered_alike_and_scraped_while_its_members_work(url: str) -> None:
    with sync.connect(url) as client:
        scrape = Scrape(client)
        with client.leader("writer") as election:
            term = next(iter(election.terms()))
            with term:
                assert scrape.of("units_held", kind="election", group_id="writer") == 1
        assert scrape.of("units_revoked_total", kind="election") == 1
    assert scrape.of("members") is None
    assert (scrape.of("calls_total", operation="LeaveGroup") or 0) >= 1


async def test_scrapes_of_other_threads_never_meet_a_number_that_is_being_changed(url: str) -> None:
    errors: list[BaseException] = []
    done = threading.Event()
    async with rota.connect(url) as client:
        scrape = Scrape(client)

        def scrape_on() -> None:
            try:
                while not done.is_set():
                    generate_latest(scrape.registry)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=scrape_on) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            await asyncio.gather(*(_come_and_go(client, number) for number in range(10)))
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert errors == []
    assert scrape.of("units_assigned_total", kind="election") == 10


async def _come_and_go(client: Client, number: int) -> None:
    async with client.leader(f"election-{number}") as election:
        await anext(election.terms())


async def test_heartbeats_of_the_heartbeat_thread_count_too(url: str) -> None:
    async with rota.connect(url, heartbeat_thread=True) as client:
        scrape = Scrape(client)
        async with client.leader("writer", session_timeout_ms=2_000) as election:
            await anext(election.terms())
            counted, age_s = scrape.of("calls_total", operation="Heartbeat", outcome="ok") or 0, 0.0
            # The loop is blocked on purpose: only the other thread can send a heartbeat.
            waiting = threading.Event()
            for _ in range(100):
                if (scrape.of("calls_total", operation="Heartbeat", outcome="ok") or 0) > counted:
                    break
                waiting.wait(0.1)
            age_s = scrape.of("heartbeat_age_seconds") or 99
            assert (scrape.of("calls_total", operation="Heartbeat", outcome="ok") or 0) > counted
            assert age_s < 2
