"""Shared liveness without a store: what a replica publishes, asks and believes, and when it leaves the store alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rota.core.group.sessions import MemberName
from rota.core.group.state import Timer, TimerKind
from rota.core.replica.owned_shard import (
    GRACE_MS,
    PUBLISH_MS,
    STILL_HERE_MS,
    Ready,
    _share_sessions,
)
from rota.core.replica.ports import LivenessUnavailable, SeenMembers, ShardNews
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeavingMember,
    MemberHeartbeat,
    Protocol,
    SyncGroup,
)
from rota.server.runtime.sessions import AWAY_MS, MOST_GONE, SharedSessions
from rota.server.runtime.telemetry import Telemetry
from tests.unit.replica.shards import ReplicaOfOneShard

GROUP = ("default", "g")
SESSION_MS = 10_000


class ScriptedStore:
    """A liveness store that answers what `answers` returns."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: Callable[[], Any] = list

    async def ping(self) -> None:
        self._answer("ping", None)

    async def publish(self, news: Sequence[ShardNews]) -> Any:
        return self._answer("publish", news)

    async def read(self, shard_id: int) -> Any:
        return self._answer("read", shard_id)

    async def seen_ms_ago(self, members: Sequence[tuple[int, MemberName]]) -> Any:
        return self._answer("ask", members)

    async def record(self, shard_id: int, members: Sequence[MemberName]) -> Any:
        return self._answer("record", (shard_id, members))

    async def close(self) -> None: ...

    def _answer(self, name: str, argument: Any) -> Any:
        self.asked.append((name, argument))
        return self.answers()


def away() -> Any:
    raise LivenessUnavailable("the store was told to be away")


class Replica(ReplicaOfOneShard):
    """Its shard has one member, in a Stable group. It is its own clock."""

    def __init__(self) -> None:
        super().__init__()
        self.store = ScriptedStore()
        clock: Any = self
        self.shared = SharedSessions(self.store, clock, Telemetry())
        self.calls = 0
        self.ready = self.load_shard(seen=SeenMembers({}, None))
        self._commit()
        joined = self.decide(
            JoinGroup(*GROUP, "worker", (Protocol("p"),), SESSION_MS, 60_000, group_instance_id="i", new_member_id="m")
        )
        assert isinstance(joined, JoinReply)
        self.member = (*GROUP, joined.member_id)
        self.decide(SyncGroup(*GROUP, joined.member_id, 1, assignments=((joined.member_id, b""),)))

    def decide(self, request: Any) -> Any:
        self.calls += 1
        self.ready = self.owned.submit(self.calls, request, self.now())
        replies = dict(self.ready.replies)
        for timer in self.ready.timers:
            if timer.kind is TimerKind.JOIN and timer.at_ms <= self.now().wall_ms:
                self.owned.on_timer(timer, self.now())
        while self.owned.has_entries:
            replies |= dict(self._commit().replies)
        return replies[self.calls].reply if self.calls in replies else None

    def _commit(self) -> Ready:
        self.ready = self.owned.committed(self.owned.take_batch().last_seq, self.now())
        self.shared.forget(0, self.ready.gone)
        return self.ready

    def monotonic_ms(self) -> int:
        return self.now_ms

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What the work returns, which waits for nothing here."""
        self.store.asked = []
        with pytest.raises(StopIteration) as end:
            work.send(None)
        return end.value.value

    def publish(self) -> ShardNews | None:
        """What one round publishes."""
        self.run(self.shared.publish([self.owned]))
        sent = [argument for name, argument in self.store.asked if name == "publish"]
        return sent[0][0] if sent else None

    @property
    def asked(self) -> list[str]:
        """What the last work asked the store."""
        return [name for name, _ in self.store.asked]

    def heartbeat(self) -> None:
        assert self.decide(Heartbeat(*GROUP, self.member[2], 1)).error is ErrorCode.NONE

    def goes_away(self) -> None:
        self.store.answers = away

    def comes_back(self) -> None:
        self.store.answers = list


@pytest.fixture
def replica() -> Replica:
    return Replica()


# --- publishing --------------------------------------------------------------------------------------


def test_a_shard_is_published_as_a_whole_once_it_is_loaded(replica: Replica) -> None:
    replica.later(700)

    assert replica.publish() == ShardNews(0, {replica.member: 700}, [])
    assert replica.asked == ["publish"]


OTHER = (*GROUP, "other")


def test_a_member_that_went_in_an_outage_is_forgotten_later(replica: Replica) -> None:
    replica.publish()
    replica.goes_away()
    replica.decide(LeaveGroup(*GROUP, (LeavingMember(replica.member[2]),)))
    assert replica.publish() is not None
    replica.comes_back()
    replica.later(AWAY_MS)

    news = replica.publish()

    assert news is not None
    assert news.gone == [replica.member]
    replica.later(STILL_HERE_MS)
    assert replica.publish() == ShardNews(0, {}, [])


def test_a_member_that_goes_during_a_publication_is_in_the_next(replica: Replica) -> None:
    def answer() -> Any:
        replica.shared.forget(0, [OTHER])
        return []

    replica.store.answers = answer
    replica.publish()
    replica.comes_back()

    assert replica.publish() == ShardNews(0, {}, [OTHER])
    assert replica.publish() is None


def test_a_new_owner_has_the_store_forget_what_is_no_member(replica: Replica) -> None:
    replica.store.answers = lambda: SeenMembers({replica.member: 5, OTHER: 5}, 7)
    replica.run(replica.shared.read(0))
    replica.comes_back()

    assert replica.publish() == ShardNews(0, {replica.member: 0}, [OTHER])
    replica.later(STILL_HERE_MS)
    assert replica.publish() == ShardNews(0, {}, [])


def test_the_memory_of_a_store_that_is_away_has_a_bound(replica: Replica) -> None:
    replica.shared.forget(0, [(*GROUP, str(number)) for number in range(MOST_GONE + 2)])

    news = replica.publish()

    assert news is not None
    assert (len(news.gone), news.gone[0]) == (MOST_GONE, (*GROUP, "2"))


def test_after_that_only_members_with_heartbeats_are_published(replica: Replica) -> None:
    replica.publish()
    assert replica.publish() is None
    replica.heartbeat()
    replica.later(30)

    assert replica.publish() == ShardNews(0, {replica.member: 30}, [])


def test_a_quiet_shard_is_published_now_and_then(replica: Replica) -> None:
    replica.publish()
    replica.later(STILL_HERE_MS - 1)
    assert replica.publish() is None
    replica.later(1)

    assert replica.publish() == ShardNews(0, {}, [])


def test_a_left_member_is_forgotten_once_that_is_durable(replica: Replica) -> None:
    replica.publish()
    replica.decide(LeaveGroup(*GROUP, (LeavingMember(replica.member[2], None, "done"),)))

    assert replica.publish() == ShardNews(0, {}, [replica.member])


def test_a_member_whose_call_is_parked_has_no_time(replica: Replica) -> None:
    second = JoinGroup(*GROUP, "worker", (Protocol("p"),), SESSION_MS, 60_000, group_instance_id="j", new_member_id="n")
    assert replica.decide(second) is None
    replica.later(5_000)

    assert replica.publish() == ShardNews(0, {replica.member: 5_000}, [(*GROUP, "n")])


def test_a_replica_whose_lease_may_be_over_publishes_nothing(replica: Replica) -> None:
    replica.owned.lease_until_ms = replica.now_ms

    assert replica.publish() is None


def test_each_shard_is_published_in_its_own_time(replica: Replica) -> None:
    busy, silent = replica, Replica()
    silent.owned.claim = replace(silent.owned.claim, shard_id=1)
    both = [busy.owned, silent.owned]
    busy.run(busy.shared.publish(both))
    busy.later(STILL_HERE_MS - 1)
    busy.heartbeat()
    busy.run(busy.shared.publish(both))
    busy.later(1)
    busy.run(busy.shared.publish(both))

    assert busy.store.asked == [("publish", [ShardNews(1, {}, [])])]


def test_what_the_store_has_lost_is_published_as_a_whole(replica: Replica) -> None:
    replica.publish()
    replica.heartbeat()
    replica.store.answers = lambda: [0]
    replica.publish()
    replica.comes_back()
    replica.later(10)

    assert replica.publish() == ShardNews(0, {replica.member: 10}, [])


def test_a_store_that_loses_a_whole_shard_gets_it_again_later(replica: Replica) -> None:
    replica.store.answers = lambda: [0]
    replica.publish()
    replica.later(AWAY_MS - 1)
    replica.heartbeat()
    assert replica.publish() is None, "its key is another program's: to publish it all each time is in vain"
    replica.comes_back()
    replica.later(1)

    assert replica.publish() == ShardNews(0, {replica.member: 1}, [])


# --- a store that is away --------------------------------------------------------------------------------


def test_a_failed_store_is_paused_then_asked_then_synchronised(replica: Replica) -> None:
    replica.goes_away()
    replica.publish()
    replica.later(AWAY_MS - 1)
    replica.publish()
    assert replica.asked == []
    replica.later(1)
    replica.publish()
    assert replica.asked == ["ping"]
    replica.comes_back()
    replica.publish()
    assert replica.asked == [], "it has failed again"
    replica.later(AWAY_MS)

    assert replica.publish() == ShardNews(0, {replica.member: 2 * AWAY_MS}, [])
    assert replica.asked == ["ping", "publish"]
    replica.heartbeat()
    replica.publish()
    assert replica.asked == ["publish"], "it is not asked again whether it is back"


def test_heartbeats_while_it_is_away_are_not_kept(replica: Replica) -> None:
    replica.goes_away()
    replica.publish()
    replica.heartbeat()
    replica.publish()

    assert replica.owned.shard.take_seen() == {}


# --- taking over ------------------------------------------------------------------------------------------


def test_a_new_owner_reads_what_is_known(replica: Replica) -> None:
    replica.store.answers = lambda: SeenMembers({replica.member: 5}, 7)

    assert replica.run(replica.shared.read(0)) == SeenMembers({replica.member: 5}, 7)
    assert replica.store.asked == [("read", 0)]


def test_a_new_owner_reads_nothing_from_an_unavailable_store(replica: Replica) -> None:
    replica.goes_away()

    assert replica.run(replica.shared.read(0)) == SeenMembers({}, None)
    assert replica.run(replica.shared.read(1)) == SeenMembers({}, None)
    assert replica.asked == []


@pytest.mark.parametrize(
    ("seen_ms_ago", "published_ms_ago", "left_ms"),
    [
        (4_000, 3_000, SESSION_MS - 4_000 + 3_000 + GRACE_MS),  # It was silent for a second; the grace covers that.
        (
            9_000,
            3_000,
            SESSION_MS - 3_000 + STILL_HERE_MS + 2 * PUBLISH_MS,
        ),  # It may have sent a heartbeat after the publication.
        (9_000, 6_500, SESSION_MS - 9_000 + 6_500 + GRACE_MS),  # The last publication that the lease allows.
        (9_000, PUBLISH_MS, SESSION_MS),
        (9_000, 6_501, SESSION_MS),  # The store has lost the owner's publications of the time of its lease.
        (9_000, None, SESSION_MS),
        (None, 3_000, SESSION_MS),
    ],
)
def test_a_new_owner_keeps_what_the_last_heartbeat_promised(
    replica: Replica, seen_ms_ago: int | None, published_ms_ago: int | None, left_ms: int
) -> None:
    now, seen = replica.now(), {} if seen_ms_ago is None else {replica.member: seen_ms_ago}

    _share_sessions(replica.owned.shard, SeenMembers(seen, published_ms_ago), now, now.monotonic_ms + 5_000)

    member = replica.owned.shard.groups[GROUP].members[replica.member[2]]
    assert member.session_deadline_ms == now.wall_ms + min(SESSION_MS, left_ms)


def test_a_store_that_was_away_is_read_again_later(replica: Replica) -> None:
    replica.goes_away()
    replica.publish()
    replica.store.answers = lambda: SeenMembers({replica.member: 5}, 7)
    replica.later(AWAY_MS - 1)
    assert replica.run(replica.shared.read(0)) == SeenMembers({}, None)
    replica.later(1)

    assert replica.run(replica.shared.read(0)) == SeenMembers({replica.member: 5}, 7)


# --- expiring ---------------------------------------------------------------------------------------------


def a_timer(replica: Replica) -> Timer:
    return Timer(TimerKind.SESSION, *replica.member, replica.now().wall_ms)


@pytest.mark.parametrize(("answer", "seen"), [([20], 20), ([None], None), ([], None), (None, None)])
def test_others_are_asked_for_all_that_would_expire(replica: Replica, answer: object, seen: int | None) -> None:
    timer = a_timer(replica)
    replica.store.answers = away if answer is None else lambda: answer

    assert replica.run(replica.shared.ask_others([(0, timer)])) == [seen]
    assert replica.store.asked == [("ask", [(0, replica.member)])]


# --- heartbeats that no owner answers -----------------------------------------------------------------------


def test_a_recorded_heartbeat_is_answered_without_a_state(replica: Replica) -> None:
    replica.store.answers = lambda: [True]

    answer = replica.run(replica.shared.record(0, Heartbeat(*GROUP, "m", 3)))

    assert answer.reply == HeartbeatReply(generation_id=3)
    assert (answer.revision, answer.epoch) == (0, 0)
    assert replica.store.asked == [("record", (0, [(*GROUP, "m")]))]


@pytest.mark.parametrize("answer", [[False], [], None])
def test_an_unknown_member_is_not_answered_for(replica: Replica, answer: object) -> None:
    replica.store.answers = away if answer is None else lambda: answer

    assert replica.run(replica.shared.record(0, Heartbeat(*GROUP, "m", 3))) is None


def test_of_several_members_the_unknown_must_retry(replica: Replica) -> None:
    replica.store.answers = lambda: [True, False]
    beats = (MemberHeartbeat("m", 3), MemberHeartbeat("n", 2))

    reply = replica.run(replica.shared.record(0, HeartbeatMany(*GROUP, beats))).reply

    assert isinstance(reply, HeartbeatManyReply)
    assert [(error.member_id, error.error) for error in reply.errors] == [("n", ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    assert reply.generation_id == 3
