"""Groups for the benches of the core: brought to Stable, and driven from generation to generation."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rota.core.group.shard import Shard
from rota.core.group.state import COMPLETING_REBALANCE, STABLE, Group, Timer, TimerKind
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, JoinGroup, LeaveGroup, LeavingMember, Protocol, Request, SyncGroup

NAMESPACE = "bench"
LIMITS = Limits(initial_rebalance_delay_ms=0)
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 60_000
PROTOCOLS = ("cooperative-sticky", "range")
METADATA_BYTES = 60
CALL = 1
"""No runtime listens to the replies, so every call may have the same number."""


class StableGroup:
    """One group of `size` members in a shard, with the requests that its members send.

    Requests are made anew each time, outside of what is measured, because a server gets each of them off the wire.
    """

    def __init__(
        self,
        shard: Shard,
        group_id: str,
        size: int,
        *,
        static: bool = False,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self.shard = shard
        self.group_id = group_id
        self.member_ids = [_member_id(group_id, index) for index in range(size)]
        self._static = static
        self._session_timeout_ms = session_timeout_ms
        self._form()

    @property
    def group(self) -> Group:
        return self.shard.groups[NAMESPACE, self.group_id]

    def joins(self) -> list[JoinGroup]:
        """The rejoin of all members, the leader's first."""
        return [self._join(index, member_id=member_id) for index, member_id in enumerate(self.member_ids)]

    def syncs(self) -> list[SyncGroup]:
        """One of each member; the leader's, with all shares, comes after half of the others'."""
        generation_id = self.group.generation_id
        share = b"%040d" % generation_id
        leader, *others = self.member_ids
        syncs = [SyncGroup(NAMESPACE, self.group_id, member_id, generation_id) for member_id in others]
        shares = tuple((member_id, share) for member_id in self.member_ids)
        leaders = SyncGroup(NAMESPACE, self.group_id, leader, generation_id, assignments=shares)
        syncs.insert(len(syncs) // 2, leaders)
        return syncs

    def heartbeats(self) -> list[Heartbeat]:
        generation_id = self.group.generation_id
        return [Heartbeat(NAMESPACE, self.group_id, member_id, generation_id) for member_id in self.member_ids]

    def leaves(self) -> list[LeaveGroup]:
        """Each member's own, in the order of joining: each leads the group when it goes."""
        return [LeaveGroup(NAMESPACE, self.group_id, (LeavingMember(member_id),)) for member_id in self.member_ids]

    def returns(self, times: int) -> list[JoinGroup]:
        """Static followers that come back with an empty id, `times` of them and in turn."""
        followers = len(self.member_ids) - 1
        return [self._join(1 + turn % followers, new_member_id=f"returned-{turn}") for turn in range(times)]

    def next_generation(self) -> float:
        """Let all rejoin and sync; returns the seconds that the core took."""
        seconds = send(self.shard, self.joins())
        seconds += send(self.shard, self.syncs())
        assert self.group.state is STABLE
        self.shard.rows()
        return seconds

    def _form(self) -> None:
        newcomers = [self._join(index, new_member_id=member_id) for index, member_id in enumerate(self.member_ids)]
        send(self.shard, newcomers)
        if not self._static:
            send(self.shard, self.joins())
        while self.group.state is not COMPLETING_REBALANCE:
            _fire_join_timer(self.shard, self.group)
        send(self.shard, self.syncs())
        assert self.group.state is STABLE
        self.shard.rows()

    def _join(self, index: int, *, member_id: str = "", new_member_id: str = "") -> JoinGroup:
        return JoinGroup(
            NAMESPACE,
            self.group_id,
            "consumer",
            tuple(Protocol(name, bytes(METADATA_BYTES)) for name in PROTOCOLS),
            self._session_timeout_ms,
            REBALANCE_TIMEOUT_MS,
            member_id=member_id,
            group_instance_id=f"instance-{index}" if self._static else None,
            client_id="worker",
            host="10.0.0.1",
            new_member_id=new_member_id,
        )


def send(shard: Shard, requests: Sequence[Request], now_ms: int = 0) -> float:
    """Hand the requests to the core, one after the other; returns the seconds of CPU it took.

    Not the time that passed: what else the machine does is not the core's cost.
    """
    handle = shard.handle
    started = time.thread_time()
    for request in requests:
        handle(request, CALL, now_ms)
    return time.thread_time() - started


def _member_id(group_id: str, index: int) -> str:
    """As long as those that the coordinator gives out, which end in a UUID."""
    return f"{group_id}-{index:08d}-1b2c-4d5e-8f90-0123456789ab"


def _fire_join_timer(shard: Shard, group: Group) -> None:
    assert group.join_deadline_ms is not None
    timer = Timer(TimerKind.JOIN, group.namespace, group.group_id, "", group.join_deadline_ms)
    shard.on_timer(timer, group.join_deadline_ms)
