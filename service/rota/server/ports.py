"""What a transport needs of the coordinator it serves. `runtime.coordinator.LocalCoordinator` is the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from rota.core.replica.forwarding import Submitted
from rota.core.replica.ports import Answer, Cancel, JournalEvent, ShardOwner
from rota.protocol.messages import GetLeader, Heartbeat, HeartbeatMany, Request, VerifyFence


class ServedCoordinator(Protocol):
    """A coordinator with everything that HTTP and gRPC show of it."""

    @property
    def shard_count(self) -> int: ...

    async def call(self, request: Request) -> Answer:
        """Answer a request; cancelling the call un-parks it."""

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """Answer at once, without awaiting, or return None for `call` to do it."""

    def try_read(self, request: VerifyFence | GetLeader) -> Answer | None:
        """Answer at once, without awaiting, or return None for `call` to do it. Changes nothing."""

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        """As `call`, as a rule without a task. `done` gets the answer, once, and maybe before this returns.

        The result un-parks a call that parks, as cancelling `call` does; None where there is nothing to be cancelled.
        """

    def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[JournalEvent]:
        """The group's journal, live: from behind `after_revision` on, from now on where that is None.

        The iteration raises `LinesPruned` where lines after `after_revision`, or after the last line that it gave, are
        pruned, and `ReaderIsAhead` where the journal ends before `after_revision`.
        """

    async def check_revision(self, namespace: str, group_id: str, after_revision: int) -> None:
        """Raise `NotInJournal` unless the journal of the group's shard goes on after `after_revision`."""

    async def events(self, shard_id: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """Journal lines of a shard with `seq > after_seq`, in order; `NotInJournal` as in `ShardStore.read_events`."""

    def locate(self, namespace: str, group_id: str) -> ShardOwner:
        """The owner of the group's shard."""

    def owners(self) -> Sequence[ShardOwner]:
        """Every shard that this replica serves."""

    def ready(self) -> tuple[bool, str]:
        """Whether this replica can take part, and why not."""

    async def drain(self) -> None:
        """Answer all parked calls with COORDINATOR_NOT_AVAILABLE, and from now on everything."""

    async def stop(self) -> None:
        """Give the shards up and end all tasks."""
