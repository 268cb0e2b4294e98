"""The SDK's metrics as observable instruments of OpenTelemetry, under the scope `rota.client`.

    async with rota.connect("http://localhost:8080") as client:
        rota.adapters.opentelemetry.register(client)

Clients of one meter provider are added up. The numbers are read at each collection, in the thread of the reader. Names
and attributes have dots: `rota.client.calls` with `rota.group_id` is `rota_client_calls_total` with `group_id` of
`rota.adapters.prometheus`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

from rota.client.metrics import METRICS, Clients, HasStats, Metric, MetricType

try:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider
except ImportError as error:
    raise ImportError(
        f"the SDK's metrics for OpenTelemetry need its API ({error}): pip install 'rota[client-metrics]'"
    ) from error

_SCOPE = "rota.client"


def register(client: HasStats, meter_provider: MeterProvider | None = None) -> None:
    """Show the metrics of `client`, or of its sync twin, until the client is closed.

    Counters of a client that has ended stay, so that none ever falls; its gauges disappear.

    Args:
        client: The client.
        meter_provider: By default the process's own, also where the program sets that one later.
    """
    provider = meter_provider or get_meter_provider()
    shown = _shown_by(provider)
    if not shown.has_instruments:
        shown.has_instruments = True
        _create_instruments(provider.get_meter(_SCOPE), shown.clients)
    shown.clients.add(client)


def unregister(client: HasStats, meter_provider: MeterProvider | None = None) -> None:
    """Show the metrics of `client` no longer, while it stays open."""
    _shown_by(meter_provider or get_meter_provider()).clients.remove(client)


class _Shown:
    """What one meter provider shows."""

    def __init__(self) -> None:
        self.clients = Clients()
        self.has_instruments = False


_OF_PROCESS = _Shown()
"""Of the process's own provider: its proxy hands instruments on to the one that the program sets later."""
_BY_PROVIDER: WeakKeyDictionary[MeterProvider, _Shown] = WeakKeyDictionary()


def _shown_by(provider: MeterProvider) -> _Shown:
    if (known := _BY_PROVIDER.get(provider)) is not None:
        return known
    return _OF_PROCESS if provider is get_meter_provider() else _BY_PROVIDER.setdefault(provider, _Shown())


def _create_instruments(meter: Meter, clients: Clients) -> None:
    for metric in METRICS:
        is_counter = metric.type is MetricType.COUNTER
        create = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        unit = metric.unit if metric.unit == "s" else f"{{{metric.unit}}}"
        create(name_of(metric), [_observer(metric, clients)], unit, metric.meaning)


def _observer(metric: Metric, clients: Clients) -> Callable[[CallbackOptions], Iterable[Observation]]:
    names = [f"rota.{label.removeprefix('rota_')}" for label in metric.labels]

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        samples = next(values for each, values in clients.collect() if each is metric)
        return [Observation(value, dict(zip(names, labels, strict=True))) for labels, value in samples.items()]

    return observe


def name_of(metric: Metric) -> str:
    """A metric's name in OpenTelemetry: its unit and its type are not part of it."""
    return metric.name.replace("rota_client_", "rota.client.").removesuffix("_total").removesuffix("_seconds")
