"""What a simulated world knows of its replicas, whichever code serves their shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from rota.group.shard import Shard
from rota.replica.going_back import StoreMemory
from rota.testing.scheduler import Process

if TYPE_CHECKING:
    from rota.testing.network import Delivery


class ServedShard(Protocol):
    """A shard in a replica's memory, with the epoch of its claim."""

    @property
    def shard(self) -> Shard: ...

    @property
    def epoch(self) -> int: ...


class ReplicaProcess(Process, ABC):
    """One incarnation of a replica; after a crash another one takes its name."""

    def __init__(self, replica_id: str, owner_id: str) -> None:
        super().__init__()
        self.replica_id = replica_id
        """Its address: clients and the network know it by this."""
        self.owner_id = owner_id
        """Its name in the store."""
        self.cut_off_from_store_until_ms = 0

    @property
    @abstractmethod
    def owned(self) -> Mapping[int, ServedShard]:
        """The shards in its memory, by shard id."""

    @property
    @abstractmethod
    def memory(self) -> StoreMemory:
        """Its memory of the store."""

    @abstractmethod
    def receive(self, delivery: Delivery) -> None:
        """A request arrived."""

    @abstractmethod
    def hang_up(self, delivery: Delivery) -> None:
        """The client closed the connection: no caller waits for this answer any more."""

    @abstractmethod
    def sweep(self) -> None:
        """Expire offsets and empty groups, in every shard."""

    @abstractmethod
    def hand_over(self) -> None:
        """Give the shards back while all is well, as a replica does that stops."""

    @abstractmethod
    def crash(self) -> None:
        """Everything in memory is gone; open connections break."""
