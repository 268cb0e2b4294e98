"""A member that shares connectors and tasks, as Kafka Connect's workers do; work of a departed worker waits for its
return.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self, TypeAlias

from rota.client.callbacks import Listeners, call, notify
from rota.client.context import ClientContext
from rota.client.member import Member
from rota.client.roles import Role
from rota.core.assignors.work import Memory, WorkItem, WorkShare, assign_work
from rota.core.membership import Assigned, JoinedAsLeader, MembershipSettings
from rota.core.types.worker import PROTOCOL_NAME as SERVER_PROTOCOL_NAME
from rota.core.types.worker import (
    WorkerState,
    config_offset_in,
    decode_share,
    decode_state,
    encode_share,
    encode_state,
    memory_fields,
    memory_in,
)
from rota.protocol.defaults import RETURN_DELAY_MS
from rota.protocol.messages import DescribedMember, DescribeGroup, DescribeReply, OffsetToCommit, Protocol

INCREMENTAL = "incremental"
EAGER = "eager"
PROTOCOLS = (INCREMENTAL, EAGER)
"""With `incremental`, kept work continues during a rebalance; with `eager`, every worker stops all its work before it
joins, and no work is held back.
"""

WorkShared: TypeAlias = tuple[WorkItem, ...]
Configured: TypeAlias = "Collection[WorkItem] | Callable[[], Collection[WorkItem] | Awaitable[Collection[WorkItem]]]"
"""All connectors and tasks, or a function (plain or async) that the leader calls periodically."""
ConfigOffset: TypeAlias = "int | Callable[[], int]"
"""This worker's position in its configuration, or a function that returns it."""

CONFIG_WAIT_S = 5.0
"""Maximum time for which a leader waits to read its configuration as far as another worker has."""
_CONFIG_LOOK_S = 0.1

_log = logging.getLogger(__name__)


@dataclass
class WorkRole(Role[WorkShared]):
    """The role of workers that share work. `memory` is the last leader's memory; the next leader starts with it.

    Without `configured` the server assigns: the connectors are the registered topics with these names.
    """

    configured: Configured | None
    url: str = ""
    return_delay_ms: int = RETURN_DELAY_MS
    connectors: tuple[str, ...] = ()
    config_offset: ConfigOffset | None = None
    listed: tuple[str, ...] = (INCREMENTAL,)
    """The protocols that this worker lists if a leader assigns, the preferred one first."""
    chosen: str = field(default="", init=False)
    """The protocol of the last share."""
    given: bytes = field(default=b"", init=False)
    """The bytes of the last share: its times count from when it was first read."""
    share: WorkShare = field(default_factory=WorkShare, init=False)
    """The latest share of this worker."""
    stopped_in: int = field(default=-1, init=False)
    """The last generation in which work was revoked that this process did not run."""
    distributed: frozenset[WorkItem] | None = field(default=None, init=False)
    """The configuration at the time of the group's assignment; None if another process made it."""
    memory: Memory = field(default_factory=Memory, init=False)
    read_up_to: int = field(default=-1, init=False)
    """The position of the configuration from which this worker's share was assigned; -1 if workers do not report it."""

    def __post_init__(self) -> None:
        if (self.configured is None) != bool(self.connectors):
            raise ValueError("a worker has either the work that is configured, or the names of connectors")
        if not self.listed or len(set(self.listed)) < len(self.listed) or not set(self.listed) <= set(PROTOCOLS):
            raise ValueError(f"protocols must be some of {', '.join(PROTOCOLS)}, each once, not {self.listed}")
        if self.is_by_server and self.listed != (INCREMENTAL,):
            raise ValueError("the server assigns connectors incrementally: protocols do not go with connectors")

    @property
    def is_by_server(self) -> bool:
        return self.configured is None

    @property
    def is_cooperative(self) -> bool:  # type: ignore[override]
        """Return whether the protocol that the group chose last is cooperative; a worker that lists both then need not
        stop.
        """
        return self.chosen != EAGER and self.listed != (EAGER,)

    def protocols(self, held: WorkShared | None, generation_id: int) -> tuple[Protocol, ...]:  # noqa: ARG002
        running = held if held and self.is_cooperative else ()
        state = WorkerState(self.url, self._offset(), running, self.stopped_in)
        if not self.is_by_server:
            return tuple(Protocol(name, encode_state(state)) for name in self.listed)
        wish = replace(state, topics=self.connectors, scheduled_rebalance_max_delay_ms=self.return_delay_ms)
        return (Protocol(SERVER_PROTOCOL_NAME, encode_state(wish)),)

    def _offset(self) -> int:
        if self.config_offset is None:
            return -1
        offset: object = self.config_offset() if callable(self.config_offset) else self.config_offset
        if isinstance(offset, int):
            return offset
        if inspect.iscoroutine(offset):
            offset.close()
        raise TypeError(f"config_offset must be a number, or a plain function that returns one, not {offset!r}")

    async def assign(self, generation: JoinedAsLeader) -> dict[str, bytes]:
        """Assign the work of all members. Metadata that cannot be parsed fails the generation for all.

        A leader that has not read its configuration as far as another worker fails it too: its list is outdated.
        """
        states = [decode_state(member.metadata) for member in generation.members]
        workers = [
            state.of_member(member.member_id, member.group_instance_id)
            for state, member in zip(states, generation.members, strict=True)
        ]
        furthest = max(state.config_offset for state in states)
        await self._read_as_far_as(furthest)
        configured, now_ms = await self.ask(), _now_ms()
        is_eager = generation.protocol_name == EAGER
        # A worker that did not know of a joining eager one still runs its work, and keeps it in this round.
        shares, memory = assign_work(
            configured,
            workers,
            Memory(self.memory.given) if is_eager else self.memory,
            now_ms=now_ms,
            scheduled_rebalance_max_delay_ms=0 if is_eager else self.return_delay_ms,
        )
        self.distributed = configured
        # The next leader needs it: otherwise the work of a leader that leaves would not wait for its return. This
        # leader also reads it from its share, because a generation that ends before its sync reaches no member.
        more = memory_fields(memory, now_ms)
        return {member_id: encode_share(share, furthest, **more) for member_id, share in shares.items()}

    async def _read_as_far_as(self, furthest: int) -> None:
        """Wait briefly for a function's position to reach `furthest`; a leader without a position cannot compare."""
        if self.config_offset is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CONFIG_WAIT_S):
                while self._offset() < furthest:  # noqa: ASYNC110 — it is the program that reads
                    await asyncio.sleep(_CONFIG_LOOK_S)
        if (own := self._offset()) < furthest:
            raise RuntimeError(f"this leader has read its configuration up to {own}, another worker up to {furthest}")

    def read_back(self, members: Sequence[DescribedMember]) -> frozenset[WorkItem]:
        """Return all assigned work, and remember each worker's: an earlier process of this member usually assigned it.

        The work of each worker is remembered, so that it is held back if the worker leaves.
        """
        given: dict[str, frozenset[WorkItem]] = {}
        for member in members:
            worker = decode_state(member.metadata).of_member(member.member_id, member.group_instance_id)
            given[worker.identity] = frozenset(decode_share(member.assignment).run)
        self.memory = Memory(given)
        return frozenset[WorkItem]().union(*given.values())

    async def ask(self) -> frozenset[WorkItem]:
        """Return the work that is configured now."""
        assert self.configured is not None, "the server assigns"
        return frozenset(await call(self.configured) if callable(self.configured) else self.configured)

    def read(self, assigned: Assigned) -> WorkShared:
        self.share = decode_share(assigned.assignment)
        self.read_up_to = config_offset_in(assigned.assignment)
        self.chosen = assigned.protocol_name
        if assigned.assignment != self.given:
            self.given = assigned.assignment
            self.memory = memory_in(self.given, _now_ms()) or self.memory
        return self.share.run

    def concerned(self, held: WorkShared | None, offsets: Sequence[OffsetToCommit]) -> WorkShared:  # noqa: ARG002
        return tuple(WorkItem(each.topic, each.partition) for each in offsets)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class ConnectWorker(Member[WorkShared]):
    """A `Member` with a share of connectors and tasks.

    Kept work continues while the group rebalances. Work that moves is revoked first and assigned in a second round.
    Progress of a task is committed with the connector as the topic and the task as the partition.
    """

    _kind = "connect_worker"

    def __init__(
        self,
        context: ClientContext,
        settings: MembershipSettings,
        *,
        role: WorkRole,
        listeners: Listeners[WorkShared],
        refresh_interval: float,
        leave_on_close: bool | None = None,
    ) -> None:
        """`refresh_interval` is the interval at which the leader checks for changed work."""
        own_listeners: Listeners[WorkShared] = Listeners(self._start, listeners.on_revoked, listeners.on_lost)
        super().__init__(context, settings, role=role, listeners=own_listeners, leave_on_close=leave_on_close)
        self._work_role = role
        self._on_assigned = listeners.on_assigned
        self._refresh_s = refresh_interval
        self._notified = asyncio.Event()

    @property
    def config_offset(self) -> int:
        """The configuration position from which this worker's share was assigned; -1 if workers report none.

        Read your configuration up to it before you start the work that `on_assigned` adds.
        """
        return self._work_role.read_up_to

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._in_background(self._wait_for_absent_workers())
        self._in_background(self._follow_work())
        return self

    async def _start(self, added: WorkShared, held: WorkShared, *, deadline: float | None) -> None:
        await notify(self._on_assigned, added, held, deadline=deadline)
        self._notified.set()
        if self._work_role.share.revoke and self._work_role.stopped_in != self.generation_id:
            # This worker, or its former process, ran that work and has stopped; only another round notifies the group.
            self._work_role.stopped_in = self.generation_id
            self.rejoin("does not run what it should stop")

    async def _wait_for_absent_workers(self) -> None:
        """As the leader, start a rebalance when work has waited long enough for its worker."""
        while True:
            await self._notified.wait()
            self._notified.clear()
            delay_ms = self._work_role.share.delay_ms
            if not delay_ms or not self.is_leader:
                continue
            try:
                async with asyncio.timeout(delay_ms / 1000):
                    await self._notified.wait()
            except TimeoutError:
                self.rejoin("an absent worker did not come back in time")

    async def _follow_work(self) -> None:
        """As the leader, start a rebalance when the configured work differs from the assigned work."""
        while not self._work_role.is_by_server:
            # The jitter spreads the members' checks.
            await asyncio.sleep(self._refresh_s * (0.75 + 0.5 * self._jitter()))
            if not self.is_leader or self.assignment is None:
                continue
            if not callable(self._work_role.configured) and self._work_role.distributed is not None:
                continue
            try:
                await self._compare_work()
            except Exception as error:
                # The user's function may raise; the next check retries.
                _log.warning("group %s: its work could not be compared: %r", self.group_id, error)

    async def _compare_work(self) -> None:
        role, generation_id = self._work_role, self.generation_id
        distributed = role.distributed
        given = await self._read_given() if distributed is None else distributed
        if given is None:
            return
        configured = await role.ask()
        if distributed is not role.distributed or generation_id != self.generation_id:
            return
        if configured != given:
            self.rejoin("other work is configured")
        else:
            role.distributed = configured

    async def _read_given(self) -> frozenset[WorkItem] | None:
        """Return the work that was assigned to the group, for a leader that has returned; None until that is settled.

        Work that is held back for an absent worker has no holder: it is compared after that delay.
        """
        request = DescribeGroup(self.namespace, self.group_id)
        group = await self._caller.ask(request, DescribeReply)
        if group.state != "Stable" or group.generation_id != self.generation_id or self._work_role.share.delay_ms:
            return None
        return self._work_role.read_back(group.members)
