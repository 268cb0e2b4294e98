"""Requests that every transport accepts, to one group of the core: metadata that is nearly right, and administrators.

Members of each built-in protocol type join, with strategies of the leader's and of the server's. The driver checks the
invariants, the journal and the rows after each step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from rota.core.assignors import TopicPartition
from rota.core.types import TopicFacts
from rota.core.types.consumer import Subscription, encode_subscription
from rota.protocol import messages as m
from rota.protocol.limits import Limits
from tests.fuzz.campaign import Target
from tests.fuzz.mutations import as_json, mutated, mutated_document
from tests.unit.group.driver import KEY, NAMESPACE, Core

LIMITS = Limits(
    initial_rebalance_delay_ms=300,
    min_session_timeout_ms=50,
    offsets_retention_ms=5_000,
    group_max_size=4,
    empty_group_retention_ms=0,
)
MOST_STEPS = 50
PROTOCOLS = {
    "consumer": ("range", "server:range", "server:sticky(prefer=stickiness)", "server:weighted", "server:redundant(2)"),
    "worker": ("incremental", "eager", "server:incremental"),
    "leader": ("single", "server:single", "their own"),
    "permits": ("server:permits", "their own"),
    "their own": ("a", "b"),
}
METADATA: dict[str, tuple[dict[str, Any], ...]] = {
    "consumer": (
        {"topics": ["t", "u*"], "rack": "r1", "capacity": 2, "owned": {"t": [0, 1]}, "generation_id": 1},
        {"topics": [], "topics_debounce_ms": 5, "user_data": {"version": 1, "data": "eA=="}},
    ),
    "worker": (
        {"version": 1, "url": "http://w", "topics": ["t"], "running": {"t": [-1, 0]}, "config_offset": 3},
        {"version": 1, "topics": ["*"], "running": {}, "scheduled_rebalance_max_delay_ms": 200},
    ),
    "leader": ({"endpoint": "http://c", "priority": 5, "preempt_after_ms": 100, "holding": True}, {"holding": False}),
    "permits": ({"permits": 1}, {"permits": 2}),
    "their own": ({},),
}
_KAFKAS = encode_subscription(Subscription(("t", "u"), owned_partitions=(TopicPartition("t", 0),), generation_id=1))


class CoreFuzzer:
    """Plays one group from its first member until all of them are silent."""

    cpu_s = staticmethod(time.thread_time)

    def play(self, random: Random) -> None:
        _Play(random).run()


class _Play:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.core = Core(LIMITS)
        self.protocol_type = random.choice(list(PROTOCOLS))
        offered = PROTOCOLS[self.protocol_type]
        self.offered = random.sample(offered, random.randint(1, len(offered)))
        self.topics: dict[str, TopicFacts] = {}
        self.joins = 0

    def run(self) -> None:
        actions: list[Callable[[], object]] = [
            *[self.join] * 8, *[self.sync] * 3, *[self.heartbeat] * 2, *[self.assign] * 2, *[self.pass_time] * 2,
            self.leave, self.commit, self.administer, self.put_topic, self.read, self.end_a_wait, self.core.restart,
        ]  # fmt: skip
        for _ in range(self.random.randint(10, MOST_STEPS)):
            self.random.choice(actions)()
        for call in list(self.core.unanswered):
            self.core.hang_up(call)
        self.core.advance(20_000)
        group = self.core.shard.groups.get(KEY)
        assert group is None or not group.members, "members outlive their sessions"

    # --- members -----------------------------------------------------------------------------------------

    def join(self) -> None:
        self.joins += 1
        random, member_id = self.random, self.member_id() if self.random.random() < 0.6 else ""
        instance_id = self.instance_id(member_id) if member_id else random.choice((None, None, "i0", "i1"))
        names = self.offered if random.random() < 0.8 else random.choices(PROTOCOLS[self.protocol_type], k=2)
        protocols = tuple(m.Protocol(name, self.metadata()) for name in names)
        times = (random.choice((50, 400, 1_000)), random.choice((0, 200, 900)))
        held = random.choice((-1, -1, -1, self.generation_id() + 3, 10**6))
        self.core.send(
            m.JoinGroup(
                *KEY, self.protocol_type, protocols, *times, member_id, instance_id, new_member_id=f"n{self.joins}",
                reason=random.choice(("", "the topics changed")), last_generation_id=held,
            )
        )  # fmt: skip

    def sync(self) -> None:
        group = self.core.shard.groups.get(KEY)
        leads = group is not None and group.leader_id is not None and self.random.random() < 0.6
        member_id = group.leader_id or "" if group is not None and leads else self.member_id()
        shares = tuple((each, self.metadata()) for each in (group.members if group is not None else ()))
        error = self.random.choice((None, None, None, "", "no"))
        instance_id = self.instance_id(member_id)
        said: dict[str, Any] = {"assignments": shares} if error is None else {"leader_error": error}
        self.core.send(m.SyncGroup(*KEY, member_id, self.generation_id(), instance_id, **said))

    def heartbeat(self) -> None:
        member_id = self.member_id()
        beats = tuple(m.MemberHeartbeat(self.member_id(), self.generation_id()) for _ in range(3))
        wait_ms = self.random.choice((0, 100))
        self.core.send(m.Heartbeat(*KEY, member_id, self.generation_id(), self.instance_id(member_id), wait_ms))
        self.core.send(m.HeartbeatMany(*KEY, beats))

    def leave(self) -> None:
        leaving = tuple(
            m.LeavingMember(member_id, failed_unit=self.random.choice(("", "t/0", "t/1")))
            for member_id in (self.member_id(), self.member_id())
        )
        self.core.send(m.LeaveGroup(*KEY, leaving, by_admin=self.random.random() < 0.2))

    def commit(self) -> None:
        retention_ms = self.random.choice((0, 100))
        offset = m.OffsetToCommit("t", self.random.randrange(2), self.joins, retention_time_ms=retention_ms)
        generation_id = self.random.choice((-1, self.generation_id()))
        self.core.send(m.CommitOffsets(*KEY, generation_id, (offset, offset), self.member_id()))

    # --- the server and its administrators ----------------------------------------------------------------

    def assign(self) -> None:
        """As a replica does: what the strategy raises is the outcome."""
        job = self.core.shard.assignment_job(*KEY)
        if job is None:
            return
        try:
            outcome: Any = job.side.checked_assign(job.generation, self.topics)
        except ValueError as error:
            outcome = str(error)
        self.core._take(self.core.shard.finish_job(job, outcome, self.core.now_ms))

    def administer(self) -> None:
        random = self.random
        self.core.send(
            random.choice(
                (
                    m.FreezeGroup(*KEY, random.choice((0, 300, 2_000))),
                    m.QuarantineGroup(*KEY, random.choice((None, 0, 1)), random.choice((None, 1, 3)), 500),
                    m.QuarantineGroup(*KEY, release=("t/0", "t/0")),
                    m.DrainMember(*KEY, self.member_id(), max_leaving=1, grant_ms=500),
                    m.RebalanceGroup(*KEY, step_down=random.random() < 0.6),
                    m.DeleteOffsets(*KEY, (m.TopicPartitions("t", (0, 0, 1)),)),
                    m.DeleteGroup(*KEY),
                )
            )
        )

    def put_topic(self) -> None:
        attributes = self.random.choice(({}, {"weights": "1,2,x,1e400"}, {"racks": "r1,r2+r1,,"}))
        topic, partitions = self.random.choice("tu"), self.random.randint(1, 6)
        reply = self.core.ask(m.PutTopic(NAMESPACE, topic, partitions, attributes))
        if reply.partitions:
            self.topics[topic] = TopicFacts(reply.partitions, attributes)

    def read(self) -> None:
        fence = m.VerifyFence(*KEY, self.generation_id(), self.member_id())
        for request in (m.DescribeGroup(*KEY), m.ListGroups(NAMESPACE, topic="t"), m.GetLeader(*KEY), fence):
            self.core.ask(request)

    def pass_time(self) -> None:
        self.core.advance(self.random.choice((0, 50, 200, 1_000)))
        if self.random.random() < 0.3:
            self.core.sweep()

    def end_a_wait(self) -> None:
        if parked := list(self.core.unanswered):
            self.random.choice((self.core.wait_is_over, self.core.hang_up))(self.random.choice(parked))

    # --- what requests say ----------------------------------------------------------------------------------

    def member_id(self) -> str:
        group = self.core.shard.groups.get(KEY)
        known = [*group.members, *group.pending] if group is not None else []
        return self.random.choice(known) if known and self.random.random() < 0.9 else "no member"

    def instance_id(self, member_id: str) -> str | None:
        group = self.core.shard.groups.get(KEY)
        member = group.members.get(member_id) if group is not None else None
        return member.image.group_instance_id if member is not None else None

    def generation_id(self) -> int:
        group = self.core.shard.groups.get(KEY)
        return (group.generation_id if group is not None else 0) + self.random.choice((0, 0, 0, 0, -1, 1))

    def metadata(self) -> bytes:
        """Mostly right, of the group's type; otherwise changed a little."""
        said = self.random.choice(METADATA[self.protocol_type])
        chance = self.random.random()
        if chance < 0.8:
            return json.dumps(said).encode() if chance < 0.7 or self.protocol_type != "consumer" else _KAFKAS
        if chance < 0.9:
            return as_json(mutated_document(self.random, said))
        return mutated(self.random, self.random.choice((_KAFKAS, json.dumps(said).encode())))


@contextmanager
def opened() -> Iterator[CoreFuzzer]:
    yield CoreFuzzer()


CORE = Target("core", "requests of members and administrators to one group, in memory", opened)
