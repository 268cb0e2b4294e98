"""Several heartbeats in one command, and leaves that hold only for members that have fallen silent."""

from __future__ import annotations

from rota.core.group.rows import ShardImage
from rota.core.group.shard import Shard
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    JoinGroup,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    MemberHeartbeat,
    Protocol,
    Reply,
    Request,
    SyncGroup,
)

G = ("default", "g")
SESSION_MS = 10_000


class Table:
    """A shard, a clock, and the replies by call."""

    def __init__(self) -> None:
        self.shard, _ = Shard.load(ShardImage(0), Limits(initial_rebalance_delay_ms=0), 0)
        self.now_ms = 1_000
        self.calls = 0
        self.replies: dict[int, Reply] = {}

    def ask(self, request: Request) -> Reply | None:
        self.calls += 1
        result = self.shard.handle(request, self.calls, self.now_ms)
        self.replies.update(result.replies)
        for timer in [timer for timer in result.timers if timer.at_ms <= self.now_ms]:
            self.replies.update(self.shard.on_timer(timer, self.now_ms).replies)
        return self.replies.get(self.calls)

    def deadline_of(self, member_id: str) -> int | None:
        return self.shard.groups[G].members[member_id].session_deadline_ms


def a_join(instance: str) -> JoinGroup:
    protocols = (Protocol("range", b""),)
    return JoinGroup(
        *G, "worker", protocols, SESSION_MS, 60_000, group_instance_id=instance, new_member_id=f"m-{instance}"
    )


def a_stable_group(*instances: str) -> Table:
    """Static members `m-<instance>` in generation N, led by the first."""
    table = Table()
    for instance in instances:
        table.ask(a_join(instance))
        for member in list(table.shard.groups[G].members.values()):
            if not member.joined:
                image = member.image
                table.ask(
                    JoinGroup(
                        *G,
                        "worker",
                        image.protocols,
                        SESSION_MS,
                        60_000,
                        member.member_id,
                        group_instance_id=image.group_instance_id,
                    )
                )
    generation = table.shard.groups[G].generation_id
    for instance in instances:
        given = ((f"m-{instance}", b"all"),) if instance == instances[0] else ()
        table.ask(SyncGroup(*G, f"m-{instance}", generation, instance, assignments=given))
    assert str(table.shard.groups[G].state) == "Stable"
    return table


def generation_of(table: Table) -> int:
    return table.shard.groups[G].generation_id


def many(*members: MemberHeartbeat) -> HeartbeatMany:
    return HeartbeatMany(*G, members)


def test_all_who_are_named_live_on() -> None:
    table = a_stable_group("a", "b")
    table.now_ms += 500

    reply = table.ask(many(*(MemberHeartbeat(m, generation_of(table)) for m in ("m-a", "m-b"))))

    assert reply == HeartbeatManyReply(generation_id=generation_of(table), state="Stable")
    assert table.deadline_of("m-a") == table.deadline_of("m-b") == table.now_ms + SESSION_MS


def test_each_is_refused_as_it_would_be_alone() -> None:
    table = a_stable_group("a", "b")
    current = generation_of(table)
    beats = [
        MemberHeartbeat("m-a", current, "a"),
        MemberHeartbeat("m-a", current, "b"),
        MemberHeartbeat("m-a", current, "nobody"),
        MemberHeartbeat("m-b", current - 1),
        MemberHeartbeat("m-b", current + 1),
        MemberHeartbeat("stranger", current),
    ]

    alone = [table.ask(Heartbeat(*G, b.member_id, b.generation_id, b.group_instance_id)) for b in beats]
    together = table.ask(many(*beats))

    codes = [reply.error for reply in alone if isinstance(reply, HeartbeatReply)]
    assert set(codes) > {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
    assert isinstance(together, HeartbeatManyReply)
    assert [error.error for error in together.errors] == codes[1:]


def test_a_rebalance_notifies_all_and_renews_their_sessions() -> None:
    table = a_stable_group("a", "b")
    table.ask(a_join("c"))
    table.now_ms += 700

    reply = table.ask(many(MemberHeartbeat("m-a", generation_of(table)), MemberHeartbeat("gone", 1)))

    assert isinstance(reply, HeartbeatManyReply)
    assert reply.state == "PreparingRebalance"
    reason = table.shard.groups[G].rebalance_reason
    assert reply.errors == (
        HeartbeatError("gone", ErrorCode.UNKNOWN_MEMBER_ID),
        HeartbeatError("m-a", ErrorCode.REBALANCE_IN_PROGRESS, reason),
    )
    assert table.deadline_of("m-a") == table.now_ms + SESSION_MS


def the_leave(table: Table, silent_for_ms: int) -> ErrorCode:
    leaving = LeavingMember("m-a", "a", "its stream was lost")
    reply = table.ask(LeaveGroup(*G, (leaving,), silent_for_ms=silent_for_ms))
    assert isinstance(reply, LeaveReply)
    return reply.members[0].error


def test_a_member_that_fell_silent_leaves() -> None:
    table = a_stable_group("a", "b")
    table.now_ms += 300

    assert the_leave(table, silent_for_ms=300) is ErrorCode.NONE
    assert "m-a" not in table.shard.groups[G].members


def test_a_member_that_was_seen_since_stays() -> None:
    table = a_stable_group("a", "b")
    table.now_ms += 200
    table.ask(Heartbeat(*G, "m-a", generation_of(table)))
    table.now_ms += 100

    assert the_leave(table, silent_for_ms=300) is ErrorCode.INVALID_REQUEST
    assert "m-a" in table.shard.groups[G].members


def test_a_member_that_waits_for_an_answer_stays() -> None:
    table = a_stable_group("a", "b")
    table.ask(Heartbeat(*G, "m-a", generation_of(table), wait_ms=3_000))
    table.now_ms += 300

    assert the_leave(table, silent_for_ms=300) is ErrorCode.INVALID_REQUEST
