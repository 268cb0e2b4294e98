"""Facts on which a cluster and its network agree: the ports of each part, and how a replica finds the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tests.support.places import THIS_MACHINE, Place

POSTGRES = "postgres"
REDIS = "redis"


@dataclass(frozen=True, slots=True)
class ReplicaPorts:
    http: int
    grpc: int
    peer: int


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of all parts, at the address of their place. No two are the same, wherever they are."""

    postgres: int
    redis: int
    replicas: Mapping[str, ReplicaPorts]


@dataclass(frozen=True, slots=True)
class Wiring:
    """How one replica reaches the others: `HOST:PORT`, and what must be said to `rota serve` besides."""

    postgres: str
    redis: str
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class Network(Protocol):
    """Tests and clients reach all parts at 127.0.0.1, whatever happens to the links between replicas and stores."""

    def place(self, name: str) -> Place:
        """Where a replica, POSTGRES or REDIS is to run. Asked for before the network is up."""
        ...

    def up(self, ports: Ports) -> AbstractContextManager[object]:
        """The network is there while the block runs."""
        ...

    def wiring(self, name: str) -> Wiring: ...

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between these two any more, and neither is notified."""
        ...

    def cut_one_way(self, source: str, target: str) -> None:
        """What `source` sends does not arrive at `target`."""
        ...

    def isolate(self, name: str) -> None:
        """Cut a replica from all but its clients."""
        ...

    def heal(self) -> None:
        """Every link is as at the beginning."""
        ...


class DirectNetwork:
    """Nothing is between the parts that could be cut, nor slow a great load down."""

    def __init__(self) -> None:
        self._ports: Ports | None = None

    def place(self, _name: str) -> Place:
        return THIS_MACHINE

    @contextmanager
    def up(self, ports: Ports) -> Iterator[None]:
        self._ports = ports
        yield

    def wiring(self, _name: str) -> Wiring:
        assert self._ports is not None, "the network is not up"
        return Wiring(f"{THIS_MACHINE.address}:{self._ports.postgres}", f"{THIS_MACHINE.address}:{self._ports.redis}")

    def cut(self, one: str, other: str) -> None:
        raise AssertionError(f"nothing is between {one} and {other} that could be cut")

    cut_one_way = cut

    def isolate(self, name: str) -> None:
        self.cut(name, "others")

    def heal(self) -> None:
        """Nothing was ever cut."""
