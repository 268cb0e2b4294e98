"""The ports that a worker does not share with those beside it, and how workers of one supervisor reach each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rota.server.settings import Address, Settings


@dataclass(frozen=True, slots=True)
class OwnPorts:
    """Where a process listens beside the addresses in its settings, which it shares."""

    http: Address | None = None
    grpc: Address | None = None


NO_OWN_PORTS = OwnPorts()


@dataclass(frozen=True, slots=True)
class Beside:
    """What the workers of one supervisor have in common, and no other replica has."""

    peer_secret: str = ""
    """The secret that they show each other where the settings name none."""
    sockets: Path | None = None
    """A folder that is open to their user alone, in which each has a socket for the others."""


ALONE = Beside()


def own_ports(settings: Settings, worker: int) -> OwnPorts:
    """Those of a worker, counted from 0: as set, or on loopback any free ones."""
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
