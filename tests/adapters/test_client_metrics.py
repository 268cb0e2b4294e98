"""The SDK's metrics through OpenTelemetry's own reader, and what an import says where a library is missing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from typing import cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, NumberDataPoint, Sum
from prometheus_client import CollectorRegistry

from rota.adapters import opentelemetry, prometheus
from rota.client.metrics import METRICS, MetricType
from tests.client.stage import SESSION_S, a_coordinator, a_worker, all_partitions_are_shared
from tests.client.virtual_time import in_virtual_time

OF_PROCESS = """
import rota.client, sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from rota.adapters.opentelemetry import register

reader = InMemoryMetricReader()
register(rota.client.connect("http://localhost:1"))
metrics.set_meter_provider(provider := MeterProvider([reader]))
register(rota.client.connect("http://localhost:1"))
register(rota.client.connect("http://localhost:1"), provider)
[scope] = reader.get_metrics_data().resource_metrics[0].scope_metrics
print(scope.scope.name, *(each.name for each in scope.metrics))
"""


class Exported:
    """A meter provider of the test's own, and what it has to export."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def metrics(self) -> Sequence[Metric]:
        data = self.reader.get_metrics_data()
        return () if data is None else data.resource_metrics[0].scope_metrics[0].metrics

    def points(self) -> dict[str, list[NumberDataPoint]]:
        """The data points of each metric; none where nothing was collected."""
        metrics = self.metrics()
        return {each.name: [cast(NumberDataPoint, point) for point in each.data.data_points] for each in metrics}

    def additive(self) -> dict[str, bool]:
        """The metrics that may be added up over processes, and whether each only grows."""
        return {each.name: each.data.is_monotonic for each in self.metrics() if isinstance(each.data, Sum)}

    def units(self) -> dict[str, str | None]:
        return {each.name: each.unit for each in self.metrics()}


@in_virtual_time
async def test_opentelemetry_reads_the_same_numbers_as_prometheus() -> None:
    exported, registry = Exported(), CollectorRegistry()
    async with a_coordinator() as coordinator:
        workers = [a_worker(coordinator), a_worker(coordinator, "x")]
        for worker in workers:
            opentelemetry.register(worker.client, exported.provider)
            prometheus.register(worker.client, registry)
        async with workers[0].member() as first, workers[1].member() as second:
            await all_partitions_are_shared([first, second])
            await asyncio.sleep(SESSION_S)
            points = exported.points()
            compared, shown = 0, sum(len(family.samples) for family in registry.collect())
            for metric in METRICS:
                for point in points.get(opentelemetry.name_of(metric), []):
                    attributes = dict(point.attributes or {})
                    labels = {label: str(attributes[f"rota.{label.removeprefix('rota_')}"]) for label in metric.labels}
                    assert registry.get_sample_value(metric.name, labels) == point.value, metric.name
                    compared += 1
            assert compared == shown > 0
            assert exported.units()["rota.client.heartbeat_age"] == "s"
            assert exported.units()["rota.client.calls"] == "{call}"
            assert exported.additive() == {
                opentelemetry.name_of(each): each.type is MetricType.COUNTER
                for each in METRICS
                if each.type is not MetricType.GAUGE and opentelemetry.name_of(each) in points
            }
    exported.provider.shutdown()


@in_virtual_time
async def test_opentelemetry_forgets_the_gauges_of_a_closed_client() -> None:
    exported = Exported()
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        opentelemetry.register(worker.client, exported.provider)
        async with worker.client, worker.member() as member:
            await member.wait_assigned()
            during = exported.points()
            assert [point.value for point in during["rota.client.units_held"]] == [12]
        after = exported.points()
        counters = {opentelemetry.name_of(each) for each in METRICS if each.type is MetricType.COUNTER}
        assert set(after) <= counters
        assert [point.value for point in after["rota.client.units_revoked"]] == [12]
        opentelemetry.unregister(worker.client, exported.provider)
    exported.provider.shutdown()


@pytest.mark.thorough
def test_a_provider_set_later_gets_each_instrument_once() -> None:
    done = subprocess.run([sys.executable, "-c", OF_PROCESS], capture_output=True, text=True, check=True)

    scope, *names = done.stdout.split()
    assert scope == "rota.client"
    assert len(names) == len(set(names)) >= 2
    assert done.stderr == ""


@pytest.mark.parametrize("library", ["opentelemetry", "prometheus"])
def test_an_import_without_the_library_says_what_to_install(library: str) -> None:
    needed = {"opentelemetry": "opentelemetry.metrics", "prometheus": "prometheus_client"}[library]
    code = f"import sys; sys.modules[{needed!r}] = None; import rota.adapters.{library}"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: the SDK's metrics for ")
    assert done.stderr.rstrip().endswith("pip install 'rota[client-metrics]'")
