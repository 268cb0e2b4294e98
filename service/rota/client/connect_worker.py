"""A member that shares connectors and tasks, as Kafka Connect's workers do: a departed worker's wait for its return."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from rota.assignors.work import Memory, WorkItem, WorkShare, assign_work
from rota.client.callbacks import Listeners, call, notify, notify_lost
from rota.client.context import ClientContext
from rota.client.member import Member
from rota.membership import Assigned, JoinedAsLeader, MembershipSettings
from rota.protocol.messages import OffsetToCommit, Protocol
from rota.types.worker import WorkerState, decode_share, decode_state, encode_share, encode_state

PROTOCOL_NAME = "incremental"
RETURN_DELAY_MS = 300_000
"""How long Kafka Connect's workers wait for each other (`scheduled.rebalance.max.delay.ms`)."""

WorkShared: TypeAlias = tuple[WorkItem, ...]
Configured: TypeAlias = "Collection[WorkItem] | Callable[[], Collection[WorkItem] | Awaitable[Collection[WorkItem]]]"
"""All connectors and tasks that there are, or a function (plain or async) that the leader asks now and then."""

_log = logging.getLogger(__name__)


@dataclass
class WorkRole:
    """Workers share work. `memory` is what this member remembers of the rounds that it led."""

    configured: Configured
    url: str = ""
    return_delay_ms: int = RETURN_DELAY_MS
    told: WorkShare = field(default_factory=WorkShare, init=False)
    """What this worker was told last."""
    dealt: frozenset[WorkItem] | None = field(default=None, init=False)
    """What there was when this worker dealt last."""
    memory: Memory = field(default_factory=Memory, init=False)

    @property
    def is_cooperative(self) -> bool:
        return True

    def protocols(self, held: WorkShared | None, generation_id: int) -> tuple[Protocol, ...]:  # noqa: ARG002
        return (Protocol(PROTOCOL_NAME, encode_state(WorkerState(self.url, running=held or ()))),)

    async def assign(self, generation: JoinedAsLeader) -> dict[str, bytes]:
        """Everybody's work. A member whose metadata cannot be read fails the generation for all."""
        workers = [
            decode_state(member.metadata).of_member(member.member_id, member.group_instance_id)
            for member in generation.members
        ]
        self.dealt = await self.ask()
        shares, self.memory = assign_work(
            self.dealt,
            workers,
            self.memory,
            now_ms=int(asyncio.get_running_loop().time() * 1000),
            scheduled_rebalance_max_delay_ms=self.return_delay_ms,
        )
        return {member_id: encode_share(share) for member_id, share in shares.items()}

    async def ask(self) -> frozenset[WorkItem]:
        """What there is to do now."""
        return frozenset(await call(self.configured) if callable(self.configured) else self.configured)

    def read(self, assigned: Assigned) -> WorkShared:
        self.told = decode_share(assigned.assignment)
        return self.told.run

    def without(self, share: WorkShared, other: WorkShared) -> WorkShared:
        taken = frozenset(other)
        return tuple(work for work in share if work not in taken)

    def concerned(self, held: WorkShared | None, offsets: Sequence[OffsetToCommit]) -> WorkShared:  # noqa: ARG002
        return tuple(WorkItem(each.topic, each.partition) for each in offsets)

    def unwanted(self, held: WorkShared) -> WorkShared:  # noqa: ARG002
        return ()


class ConnectWorker(Member[WorkShared]):
    """A `Member` whose share is connectors and tasks.

    What it keeps goes on while the group rebalances. What has to move is revoked first and given out in a second
    round. Progress of a task is committed with the connector as the topic and the task as the partition.
    """

    def __init__(
        self,
        context: ClientContext,
        settings: MembershipSettings,
        *,
        role: WorkRole,
        listeners: Listeners[WorkShared],
        refresh_ms: int,
        leave_on_close: bool | None = None,
    ) -> None:
        """`refresh_ms` is how often the leader looks whether there is other work to do."""
        own_listeners: Listeners[WorkShared] = Listeners(self._start, self._stop, self._abandon)
        super().__init__(context, settings, role=role, listeners=own_listeners, leave_on_close=leave_on_close)
        self._work_role = role
        self._user = listeners
        self._refresh_ms = refresh_ms
        self._has_stopped = False
        self._was_told = asyncio.Event()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._in_background(self._wait_for_who_is_away())
        if callable(self._work_role.configured):
            self._in_background(self._look_for_other_work())
        return self

    async def _start(self, added: WorkShared, held: WorkShared, *, deadline: float | None) -> None:
        await notify(self._user.on_assigned, added, held, deadline=deadline)
        self._was_told.set()
        has_stopped, self._has_stopped = self._has_stopped, False
        if self._work_role.told.revoke and not has_stopped:
            # Its former self ran that. It does not any more, which the group learns by another round only.
            self.rejoin("does not run what it should stop")

    async def _stop(self, removed: WorkShared, *, deadline: float | None) -> None:
        self._has_stopped = True
        await notify(self._user.on_revoked, removed, deadline=deadline)

    async def _abandon(self, removed: WorkShared, *, deadline: float | None) -> None:
        await notify_lost(self._user, removed, deadline=deadline)

    async def _wait_for_who_is_away(self) -> None:
        """As the leader, have the group rebalance when work has waited long enough for its worker."""
        while True:
            await self._was_told.wait()
            self._was_told.clear()
            delay_ms = self._work_role.told.delay_ms
            if not delay_ms or not self.is_leader:
                continue
            try:
                async with asyncio.timeout(delay_ms / 1000):
                    await self._was_told.wait()
            except TimeoutError:
                self.rejoin("who was away did not come back in time")

    async def _look_for_other_work(self) -> None:
        while True:
            # Not all members at the same moment.
            await asyncio.sleep(self._refresh_ms * (0.75 + 0.5 * self._jitter()) / 1000)
            dealt = self._work_role.dealt
            if dealt is None or not self.is_leader or self.assignment is None:
                continue
            try:
                if await self._work_role.ask() != dealt and dealt is self._work_role.dealt:
                    self.rejoin("there is other work to do")
            except Exception as error:
                # The user's own function may raise, too. Next time, then.
                _log.warning("group %s: its work could not be looked up: %r", self.group_id, error)
