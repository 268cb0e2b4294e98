"""Metrics of several clients, groups and threads that one registry shows."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

import rota
from rota.adapters.prometheus import register, unregister
from rota.client import OffsetToCommit, sync
from rota.client.metrics import METRICS, MOST_GROUPS
from tests.client.scrapes import Scrape
from tests.client.stage import SESSION_S, a_coordinator, a_worker, all_partitions_are_shared, until
from tests.client.virtual_time import in_virtual_time


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
async def test_clients_of_one_registry_add_up_and_counters_never_fall() -> None:
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
async def test_ever_new_groups_have_a_bounded_number_of_series() -> None:
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
            await asyncio.sleep(2 * SESSION_S)
            text = generate_latest(scrape.registry).decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert set(families) == {metric.name.removesuffix("_total") for metric in METRICS}
        for metric in METRICS:
            family = families[metric.name.removesuffix("_total")]
            assert family.type == metric.type_in_prometheus
            assert {frozenset(sample.labels) for sample in family.samples} == {frozenset(metric.labels)}, metric.name


def test_a_registry_with_such_names_rejects_each_client() -> None:
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


def test_clients_registered_by_threads_at_once_share_a_collector() -> None:
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


def test_the_sync_twin_is_registered_and_scraped_at_work(url: str) -> None:
    with sync.connect(url) as client:
        scrape = Scrape(client)
        with client.leader("writer") as election:
            term = next(iter(election.terms()))
            with term:
                assert scrape.of("units_held", kind="election", group_id="writer") == 1
        assert scrape.of("units_revoked_total", kind="election") == 1
    assert scrape.of("members") is None
    assert (scrape.of("calls_total", operation="LeaveGroup") or 0) >= 1


async def test_heartbeats_of_the_heartbeat_thread_count_too(url: str) -> None:
    async with rota.connect(url, heartbeat_thread=True) as client:
        scrape = Scrape(client)
        async with client.leader("writer", session_timeout=2.0) as election:
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
