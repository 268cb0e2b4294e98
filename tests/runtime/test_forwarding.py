"""Forwarding without a network: the replicas that a call asks, in which order, and the answer that its client gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import pytest

from rota.core.replica.forwarding import (
    ANSWER_MS,
    DRAINING,
    HEARTBEAT_MS,
    MOVE_MS,
    POLL_MS,
    Forwarding,
    NoAnswer,
    answer_timeout_ms,
    as_moved,
)
from rota.core.replica.ports import Answer, Cancel, Replica, ShardOwner
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    HeartbeatMany,
    HeartbeatReply,
    JoinGroup,
    ListedGroup,
    ListGroups,
    ListReply,
    ListTopics,
    ListTopicsReply,
    MemberHeartbeat,
    Protocol,
    Request,
)
from rota.server.runtime.forwarding import Directory, Forwarder
from rota.server.runtime.telemetry import Telemetry
from rota.testing import virtual_time
from rota.testing.virtual_time import LoopClock

GROUP = ("default", "g")
SHARDS = 2
SHARD = shard_of(*GROUP, SHARDS)
ONE, TWO = Replica("r1", "http://r1"), Replica("r2", "http://r2")
COMMIT = CommitOffsets(*GROUP, 1, (), "m")
BEAT = Heartbeat(*GROUP, "m", 1)
JOIN = JoinGroup(*GROUP, "worker", (Protocol("p"),), 1_000, 1_000)
RETRIABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
MOVED = ErrorCode.NOT_COORDINATOR
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def refusal(code: ErrorCode, request: Request = COMMIT, *, undecided: bool = False) -> Answer:
    return Answer(refuse(request, code, ""), undecided=undecided)


OK = Answer(HeartbeatReply(generation_id=1), revision=7, epoch=2)
"""Any answer of an owner."""


class Here:
    """This replica's own shards, which answer by a script."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def call(self, _request: Request) -> Answer:
        answer = self._shell.next_answer("")
        assert isinstance(answer, Answer)
        return answer

    async def record_heartbeat(self, _request: Heartbeat | HeartbeatMany) -> Answer | None:
        return self._shell.recorded


class Shell:
    """Forwards one call in virtual time, among replicas that answer by a script. It is the store and the peers."""

    def __init__(self, *answers: Answer | NoAnswer, recorded: Answer | None = None, here: Iterable[int] = ()) -> None:
        itself: Any = self
        own: Any = Here(self)
        self.here = set(here)
        self.directory = Directory(itself, LoopClock(), "r0", SHARDS)
        self.forwarding = Forwarding(self.directory, self.here)
        self.forwarder = Forwarder(self.forwarding, self.directory, itself, own, Telemetry())
        self.asked: list[str] = []
        """The replicas that were asked, in order; "" is this one."""
        self.took_ms = 0
        self.peer_takes_ms = 1
        self.read_takes_ms = 0
        self.on_read: Callable[[], list[ShardOwner]] = list
        self.recorded = recorded
        self._answers: Iterator[Answer | NoAnswer] = iter(answers)

    def owned_by(self, *owners: Replica, shard_id: int = SHARD) -> Shell:
        """The store names these as the owner, one after the other; the last one from then on."""
        turns = count()
        self.directory.peers = [ONE, TWO]

        def read() -> list[ShardOwner]:
            owner = owners[min(next(turns), len(owners) - 1)]
            return [ShardOwner(shard_id, owner.replica_id, owner.address, 1, 5_000)]

        self.directory.update(read(), -POLL_MS)
        self.on_read = read
        return self

    def call(self, request: Request) -> Answer:
        async def timed() -> Answer:
            began_s = asyncio.get_running_loop().time()
            answer = await self.forwarder.call(request)
            self.took_ms = round((asyncio.get_running_loop().time() - began_s) * 1000)
            return answer

        return virtual_time.run(timed(), timeout=3_600)

    def next_answer(self, replica_id: str) -> Answer | NoAnswer:
        self.asked.append(replica_id)
        answer = next(self._answers, None)
        assert answer is not None, "one replica more than expected is asked"
        return answer

    def submit(self, peer: Replica, _request: Request, done: Callable[[Answer | NoAnswer], None]) -> Cancel:
        answer = self.next_answer(peer.replica_id)
        return asyncio.get_running_loop().call_later(self.peer_takes_ms / 1000, done, answer).cancel

    async def owners(self) -> list[ShardOwner]:
        await asyncio.sleep(self.read_takes_ms / 1000)
        return self.on_read()


# --- where a call goes -----------------------------------------------------------------------------


def test_a_shard_without_a_known_owner_is_being_loaded() -> None:
    refused = Shell().forwarding.refusal(COMMIT, SHARD)

    assert refused is not None
    assert refused.reply.error is LOADING


def test_a_replica_that_drains_refuses_also_what_is_here() -> None:
    shell = Shell(here={SHARD})
    assert shell.forwarding.refusal(COMMIT, SHARD) is None
    shell.forwarding.is_draining = True

    refused = shell.forwarding.refusal(COMMIT, SHARD)

    assert refused is not None
    assert (refused.reply.error, refused.undecided) == (RETRIABLE, True)


# --- retries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [MOVED, LOADING])
def test_an_undecided_call_is_sent_to_the_next_owner(code: ErrorCode) -> None:
    shell = Shell(refusal(code), OK).owned_by(ONE, TWO)

    assert shell.call(COMMIT) is OK
    assert shell.asked == ["r1", "r2"]


@pytest.mark.parametrize("lost", [NoAnswer("connection reset"), refusal(RETRIABLE)])
def test_a_call_of_unknown_outcome_is_not_sent_again(lost: Answer | NoAnswer) -> None:
    shell = Shell(lost).owned_by(ONE, TWO)

    assert shell.call(COMMIT).reply.error is RETRIABLE
    assert shell.asked == ["r1"]


def test_a_retry_that_is_lost_ends_the_call() -> None:
    shell = Shell(refusal(MOVED), NoAnswer("timeout")).owned_by(ONE, TWO)

    answer = shell.call(COMMIT)

    assert answer.reply.error is RETRIABLE
    assert "timeout" in answer.reply.detail
    assert shell.asked == ["r1", "r2"]


def test_the_last_owner_in_the_store_is_asked_with_pauses() -> None:
    shell = Shell(refusal(MOVED), refusal(MOVED), OK).owned_by(ONE, ONE, TWO)

    assert shell.call(COMMIT) is OK
    assert shell.asked == ["r1", "r1", "r2"]
    assert shell.took_ms == 3 + POLL_MS


def test_retries_end_after_a_while_with_the_last_answer() -> None:
    shell = Shell(*[refusal(MOVED)] * 100).owned_by(ONE)

    assert shell.call(COMMIT).reply.error is MOVED
    assert MOVE_MS <= shell.took_ms <= MOVE_MS + 2 * POLL_MS


def test_a_shard_without_an_owner_is_waited_for_and_then_refused() -> None:
    shell = Shell(refusal(LOADING))

    assert shell.call(COMMIT).reply.error is LOADING
    assert shell.asked == [""]
    assert MOVE_MS <= shell.took_ms <= MOVE_MS + 2 * POLL_MS


def test_a_store_that_takes_all_the_time_ends_the_wait() -> None:
    shell = Shell(refusal(MOVED)).owned_by(ONE)
    shell.read_takes_ms = 2 * MOVE_MS

    assert shell.call(COMMIT).reply.error is MOVED
    assert shell.asked == ["r1"]


def test_a_shard_that_arrives_here_meanwhile_is_asked_here() -> None:
    shell = Shell(refusal(LOADING), OK)

    def read() -> list[ShardOwner]:
        shell.here.add(SHARD)
        return []

    shell.on_read = read

    assert shell.call(COMMIT) is OK
    assert shell.asked == ["", ""]


# --- parked calls, and a replica that drains -----------------------------------------------------------


def test_a_parked_call_of_a_draining_replica_ends_at_once() -> None:
    shell = Shell(NoAnswer(DRAINING)).owned_by(ONE, TWO)

    assert shell.call(JOIN).reply.error is RETRIABLE
    assert shell.asked == ["r1"]


def test_a_replica_that_drains_parks_no_call_at_a_peer() -> None:
    shell = Shell().owned_by(ONE)
    shell.forwarding.is_draining = True

    answer = shell.call(JOIN)

    assert (answer.reply.error, answer.undecided) == (RETRIABLE, True)
    assert shell.asked == []


def test_a_draining_replica_forwards_short_calls_unretried() -> None:
    shell = Shell(refusal(MOVED)).owned_by(ONE, TWO)
    shell.forwarding.is_draining = True

    assert shell.call(COMMIT).reply.error is MOVED
    assert shell.asked == ["r1"]


def test_only_an_undecided_refusal_is_moved_for_the_forwarder() -> None:
    assert as_moved(refusal(RETRIABLE, undecided=True)).reply.error is MOVED
    assert as_moved(refusal(RETRIABLE)).reply.error is RETRIABLE
    assert as_moved(OK) is OK


def test_a_peer_may_take_as_long_as_its_call_may_wait() -> None:
    assert answer_timeout_ms(COMMIT) == ANSWER_MS
    assert answer_timeout_ms(BEAT) == HEARTBEAT_MS
    assert answer_timeout_ms(HeartbeatMany(*GROUP, (MemberHeartbeat("m", 1),))) == HEARTBEAT_MS
    assert answer_timeout_ms(Heartbeat(*GROUP, "m", 1, wait_ms=500)) == HEARTBEAT_MS + 500


# --- heartbeats --------------------------------------------------------------------------------------

RECORDED = Answer(HeartbeatReply(generation_id=1))


@pytest.mark.parametrize("lost", [NoAnswer("timeout"), refusal(RETRIABLE, BEAT), refusal(LOADING, BEAT)])
@pytest.mark.parametrize("beat", [BEAT, HeartbeatMany(*GROUP, (MemberHeartbeat("m", 1),))])
def test_a_heartbeat_without_an_owner_is_recorded(lost: Answer | NoAnswer, beat: Heartbeat | HeartbeatMany) -> None:
    shell = Shell(lost, recorded=RECORDED).owned_by(ONE)

    assert shell.call(beat) is RECORDED
    assert shell.asked == ["r1"]


def test_a_moved_owner_is_asked_before_a_heartbeat_is_recorded() -> None:
    shell = Shell(refusal(MOVED, BEAT), OK, recorded=RECORDED).owned_by(ONE, TWO)

    assert shell.call(BEAT) is OK


def test_a_heartbeat_is_recorded_where_the_next_owner_is_silent() -> None:
    shell = Shell(refusal(MOVED, BEAT), NoAnswer("timeout"), recorded=RECORDED).owned_by(ONE, TWO)

    assert shell.call(BEAT) is RECORDED


def test_an_owner_that_keeps_refusing_is_shown_to_the_member() -> None:
    shell = Shell(*[refusal(MOVED, BEAT)] * 100, recorded=RECORDED).owned_by(ONE)

    assert shell.call(BEAT).reply.error is MOVED


def test_an_unrecorded_heartbeat_waits_for_the_next_owner() -> None:
    shell = Shell(refusal(LOADING, BEAT), OK).owned_by(ONE, TWO)

    assert shell.call(BEAT) is OK
    assert shell.asked == ["r1", "r2"]


@pytest.mark.parametrize(("wait_ms", "waits_ms"), [(300, 300), (5_000, MOVE_MS)])
def test_a_recorded_heartbeat_that_may_wait_is_not_immediate(wait_ms: int, waits_ms: int) -> None:
    shell = Shell(NoAnswer("timeout"), recorded=RECORDED).owned_by(ONE)
    shell.peer_takes_ms = 100

    assert shell.call(Heartbeat(*GROUP, "m", 1, wait_ms=wait_ms)) is RECORDED
    assert shell.took_ms == waits_ms


# --- listings ----------------------------------------------------------------------------------------


def page(*shards: int, group_id: str = "") -> Answer:
    groups = (ListedGroup(group_id, "Stable", "worker", 1, 1),) if group_id else ()
    return Answer(ListReply(groups=groups), shards=shards)


@pytest.mark.parametrize("second", [page(), page(0)])
def test_a_listing_with_a_shard_twice_or_missing_is_asked_again(second: Answer) -> None:
    shell = Shell(page(), page(0), second, page(), page(0), page(1)).owned_by(ONE)

    assert shell.call(ListGroups("default")).reply.error is ErrorCode.NONE


def test_a_drained_replica_is_left_out_of_a_listing() -> None:
    shell = Shell(refusal(LOADING, ListGroups("default")), page(0), page(1)).owned_by(ONE)

    assert shell.call(ListGroups("default")).reply.error is ErrorCode.NONE


@pytest.mark.parametrize("code", [RETRIABLE, LOADING])
def test_a_listing_that_stays_incomplete_is_refused(code: ErrorCode) -> None:
    silent = NoAnswer("timeout") if code is RETRIABLE else page()
    shell = Shell(*[page(), silent, page(1)][: 2 if code is RETRIABLE else 3] * 100).owned_by(ONE)

    assert shell.call(ListGroups("default")).reply.error is code
    assert MOVE_MS <= shell.took_ms <= MOVE_MS + 2 * POLL_MS


@pytest.mark.parametrize("forwards", [True, False])
def test_topics_are_asked_for_at_the_owner_of_their_namespace(forwards: bool) -> None:
    """Without forwarding, too: this replica assigns its groups by them."""
    request = ListTopics("default", wait_ms=500, version="v")
    shell = Shell(Answer(ListTopicsReply())).owned_by(ONE, shard_id=shard_of("default", "", SHARDS))
    shell.forwarding.forwards = forwards

    assert shell.call(request).reply.error is ErrorCode.NONE
    assert shell.asked == ["r1"]


def test_a_listing_asks_all_replicas_without_forwarding_too() -> None:
    shell = Shell(page(), page(0, group_id="b"), page(1, group_id="a")).owned_by(ONE)
    shell.forwarding.forwards = False

    shell.call(ListGroups("default"))

    assert shell.asked == ["", "r1", "r2"]
