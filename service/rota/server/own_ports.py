"""The ports of a worker that it does not share with other workers."""

from __future__ import annotations

from dataclasses import dataclass

from rota.server.settings import Address, Settings


@dataclass(frozen=True, slots=True)
class OwnPorts:
    """The listeners of a process in addition to the shared addresses in its settings."""

    http: Address | None = None
    grpc: Address | None = None


NO_OWN_PORTS = OwnPorts()


def own_ports(settings: Settings, worker: int) -> OwnPorts:
    """Return the ports of a worker, counted from 0: as configured, or any free ones on loopback."""
    return OwnPorts(
        http=_own_port(settings, settings.http, worker),
        grpc=_own_port(settings, settings.grpc, settings.workers + worker),
    )


def _own_port(settings: Settings, shared: Address | None, offset: int) -> Address | None:
    if shared is None:
        return None
    if settings.worker_ports is not None:
        return Address(shared.host, settings.worker_ports + offset)
    # Beyond loopback the operator must choose each open port.
    return Address(shared.host, 0) if shared.is_loopback else None
