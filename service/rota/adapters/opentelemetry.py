"""The SDK's metrics as observable instruments of OpenTelemetry, under the scope `rota.client`.

    async with rota.connect("http://localhost:8080") as client:
        rota.adapters.opentelemetry.register(client)

The numbers of all clients of one meter provider are added. They are read at each collection, in the reader's thread.
Names and attributes have dots: `rota.client.calls` with `rota.group_id` is `rota_client_calls_total` with `group_id` of
`rota.adapters.prometheus`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from importlib.metadata import version
from weakref import WeakKeyDictionary

from rota.client.metrics import METRICS, Metric, MetricType
from rota.client.stats import Clients, HasStats

try:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider
except ImportError as error:
    raise ImportError(
        f"the SDK's metrics for OpenTelemetry need its API ({error}): pip install 'rota[client-metrics]'"
    ) from error


def register(client: HasStats, meter_provider: MeterProvider | None = None) -> None:
    """Export the metrics of `client`, or of its sync twin, until the client is closed.

    Counters of a closed client remain, so that no counter falls; its gauges disappear.

    Args:
        client: The client.
        meter_provider: By default the process's own, even if the program sets it later.
    """
    _shown_by(meter_provider or get_meter_provider()).add(client)


def unregister(client: HasStats, meter_provider: MeterProvider | None = None) -> None:
    """Stop exporting the metrics of `client` while it stays open."""
    with _LOCK:
        clients = _known(meter_provider or get_meter_provider())
    if clients is not None:
        clients.remove(client)


_LOCK = threading.Lock()
_BY_PROVIDER: WeakKeyDictionary[MeterProvider, Clients] = WeakKeyDictionary()
_OF_PROCESS: list[Clients] = []
"""The clients of the process's own provider; its proxy forwards instruments to the provider that is set later."""


def _shown_by(provider: MeterProvider) -> Clients:
    """Return the clients that a provider exports. Its instruments are created with the first client."""
    with _LOCK:
        if (known := _known(provider)) is not None:
            return known
        clients = Clients()
        _create_instruments(provider.get_meter("rota.client", version("rota")), clients)
        if provider is get_meter_provider():
            _OF_PROCESS.append(clients)
        else:
            _BY_PROVIDER[provider] = clients
        return clients


def _known(provider: MeterProvider) -> Clients | None:
    is_of_process = bool(_OF_PROCESS) and provider is get_meter_provider()
    return _BY_PROVIDER.get(provider, _OF_PROCESS[0] if is_of_process else None)


def _create_instruments(meter: Meter, clients: Clients) -> None:
    create = {
        MetricType.COUNTER: meter.create_observable_counter,
        MetricType.SUM: meter.create_observable_up_down_counter,
        MetricType.GAUGE: meter.create_observable_gauge,
    }
    for metric in METRICS:
        create[metric.type](name_of(metric), [_observer(metric, clients)], metric.unit, metric.meaning)


def _observer(metric: Metric, clients: Clients) -> Callable[[CallbackOptions], Iterable[Observation]]:
    names = [f"rota.{label.removeprefix('rota_')}" for label in metric.labels]

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        samples = clients.collect()[metric]
        return [Observation(value, dict(zip(names, labels, strict=True))) for labels, value in samples.items()]

    return observe


def name_of(metric: Metric) -> str:
    """Return a metric's name in OpenTelemetry, which has no unit and type."""
    return metric.name.replace("rota_client_", "rota.client.").removesuffix("_total").removesuffix("_seconds")
