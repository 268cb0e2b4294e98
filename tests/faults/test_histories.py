"""The independent checks find each kind of wrong history, and accept what may happen under faults."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest

from rota.client.transports.port import GroupEvent
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    FenceReply,
    FetchedOffset,
    FetchOffsets,
    FetchReply,
    Heartbeat,
    HeartbeatReply,
    OffsetToCommit,
    Reply,
    Request,
    VerifyFence,
)
from rota.replica.ports import JournalEvent
from rota.wire.replies import Received
from tests.faults.histories import Exchange, WatchStream, check_commits, check_holders, check_watches
from tests.faults.linearizable import NEVER, Operation, violation

GROUP = ("default", "g")
STALE = CommitReply(ErrorCode.ILLEGAL_GENERATION)


def commit(start: int, end: int, mark: str, generation_id: int = 1, reply: Reply | None = None) -> Exchange:
    item = OffsetToCommit("t", 0, 7, metadata=mark)
    return exchange(start, end, CommitOffsets(*GROUP, generation_id, (item,), "m"), reply or CommitReply())


def read(start: int, end: int, mark: str) -> Exchange:
    found = FetchedOffset("t", 0, 7 if mark else -1, metadata=mark)
    return exchange(start, end, FetchOffsets(*GROUP), FetchReply(offsets=(found,)))


def exchange(start: int, end: int, request: Request, reply: Reply) -> Exchange:
    """One without an answer if it never ends."""
    return Exchange("c", request, start, end, None if end == NEVER else Received(reply, revision=1, epoch=1))


SOUND = {
    "a read after a commit": [commit(1, 2, "a"), read(3, 4, "a")],
    "a read of nothing before it": [read(1, 2, ""), commit(3, 4, "a")],
    "concurrent commits in either order": [commit(1, 4, "a"), commit(2, 3, "b"), read(5, 6, "a")],
    "a commit without an answer that was made": [commit(1, NEVER, "a"), read(2, 3, ""), read(4, 5, "a")],
    "a commit without an answer that was not": [commit(1, NEVER, "a"), commit(2, 3, "b"), read(4, 5, "b")],
    "an old generation's commit without an answer": [commit(1, NEVER, "a", 1), commit(2, 3, "b", 2), read(4, 5, "b")],
    "a rejected commit": [commit(1, 2, "a", 2), commit(3, 4, "b", 1, STALE), read(5, 6, "a")],
    "an older generation's commit meanwhile": [commit(1, 4, "a", 1), commit(2, 3, "b", 2), read(5, 6, "b")],
}
WRONG = {
    "a commit is lost": [commit(1, 2, "a"), read(3, 4, "")],
    "a commit is undone by an earlier one": [commit(1, 2, "a"), commit(3, 4, "b"), read(5, 6, "a")],
    "reads go back": [commit(1, NEVER, "a"), read(2, 3, "a"), read(4, 5, "")],
    "a read sees what comes later": [read(1, 2, "a"), commit(3, 4, "a")],
    "a read sees what was never committed": [read(1, 2, "a")],
    "a read sees a rejected commit": [commit(1, 2, "a", 1, STALE), read(3, 4, "a")],
    "an old generation commits": [commit(1, 2, "a", 2), commit(3, 4, "b", 1)],
    "an old generation's commit without an answer appears": [
        commit(1, NEVER, "a", 1),
        commit(2, 3, "b", 2),
        read(4, 5, "b"),
        read(6, 7, "a"),
    ],
    "a generation commits after a rejection as too old": [commit(1, 2, "a", 1, STALE), commit(3, 4, "b", 1)],
    "a fence of an old generation holds": [
        commit(1, 2, "a", 2),
        exchange(3, 4, VerifyFence(*GROUP, 1, "m"), FenceReply(fencing_token=fencing_token(1))),
    ],
    "an old generation's heartbeat is accepted": [
        commit(1, 2, "a", 2),
        exchange(3, 4, Heartbeat(*GROUP, "m", 1), HeartbeatReply(generation_id=1)),
    ],
}


@pytest.mark.parametrize("exchanges", SOUND.values(), ids=SOUND)
def test_an_order_is_found(exchanges: list[Exchange]) -> None:
    assert list(check_commits(exchanges)) == []


@pytest.mark.parametrize("exchanges", WRONG.values(), ids=WRONG)
def test_without_an_order_a_history_is_wrong(exchanges: list[Exchange]) -> None:
    assert [each.split()[0] for each in check_commits(exchanges)] == ["LIN"]


def test_groups_are_apart() -> None:
    elsewhere = replace(read(3, 4, ""), request=FetchOffsets("default", "other"))

    assert list(check_commits([commit(1, 2, "a"), elsewhere])) == []


def test_an_answer_without_an_epoch_says_nothing() -> None:
    beat = exchange(3, 4, Heartbeat(*GROUP, "m", 1), HeartbeatReply(generation_id=1))
    beat.answer = Received(HeartbeatReply(generation_id=1))

    assert list(check_commits([commit(1, 2, "a", 2), beat])) == []


def test_the_search_finds_what_all_orders_show() -> None:
    """Small histories at random, against a check that tries each order of each choice of unknown operations."""
    chance = random.Random(12)
    verdicts = [0, 0]
    for _ in range(400):
        operations = some_operations(chance)
        expected = any(is_explained(each) for each in outcomes(operations))
        assert (violation(operations) == "") is expected, operations
        verdicts[expected] += 1
    assert min(verdicts) > 50, verdicts


def some_operations(chance: random.Random) -> list[Operation]:
    marks = ["", *"abc"]
    places = iter(chance.sample(range(100), 12))
    operations = []
    for number in range(6):
        start, end = sorted((next(places), next(places)))
        partition, generation_id = ("t", chance.randrange(2)), chance.choice((-1, 1, 1, 2))
        if number < 3:
            end = chance.choice((end, end, NEVER))
            written = {("t", number % 2): marks[number + 1]}
            operations.append(Operation(f"o{number}", start, end, True, written, max(1, generation_id)))
        else:
            found = {partition: chance.choice([marks[0], *(m for n, m in enumerate("abc") if n % 2 == partition[1])])}
            operations.append(Operation(f"o{number}", start, end, False, found, generation_id))
    return operations


def outcomes(operations: list[Operation]) -> list[list[Operation]]:
    chosen: list[list[Operation]] = [[]]
    for operation in operations:
        with_it = [[*each, operation] for each in chosen]
        chosen = with_it + chosen if operation.end == NEVER else with_it
    return chosen


def is_explained(operations: list[Operation]) -> bool:
    return any(is_legal(order) for order in permutations(operations))


def is_legal(order: tuple[Operation, ...]) -> bool:
    generation_id, marks = -1, dict[tuple[str, int], str]()
    for n, operation in enumerate(order):
        if any(later.end < operation.start for later in order[n + 1 :]):
            return False
        if 0 <= operation.generation_id < generation_id:
            return False
        generation_id = max(generation_id, operation.generation_id)
        if operation.is_write:
            marks.update(operation.marks)
        elif any(marks.get(partition, "") != mark for partition, mark in operation.marks.items()):
            return False
    return True


def test_a_token_with_two_holders_is_wrong() -> None:
    assert list(check_holders([(GROUP, 5, 0, "m"), (GROUP, 5, 1, "n"), (GROUP, 6, 0, "n"), (GROUP, 5, 0, "m")])) == []
    assert [each.split()[0] for each in check_holders([(GROUP, 5, 0, "m"), (GROUP, 5, 0, "n")])] == ["HOLDER"]


# --- watches -----------------------------------------------------------------------------------------


JOURNAL = [
    JournalEvent(seq, 1_000 + seq, "default", "g" if seq != 3 else "other", 1, f"kind-{seq}", "why", {})
    for seq in range(1, 7)
]
"""Line 3 is of another group."""


def stream(after: int | None, *revisions: int) -> WatchStream:
    events = [GroupEvent(seq, (1_000 + seq) / 1000, 1, f"kind-{seq}", "why", {}) for seq in revisions]
    return WatchStream("w", GROUP, after, events)


@pytest.mark.parametrize(
    "streams",
    [
        [stream(0, 1, 2, 4, 5, 6)],
        [stream(0, 1, 2), stream(2, 4, 5)],
        [stream(None, 4, 5), stream(5), stream(5, 6)],
        [stream(2, 4)],
    ],
)
def test_a_watch_that_shows_each_line_once_is_sound(streams: list[WatchStream]) -> None:
    assert list(check_watches(streams, JOURNAL)) == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (stream(0, 1, 4, 2), "revision 2 after 4"),
        (stream(0, 1, 2, 2), "revision 2 after 2"),
        (stream(2, 2, 4), "revision 2 after 2"),
        (stream(0, 1, 2, 5), "revisions are missing: [4]"),
        (stream(None, 2, 5), "revisions are missing: [4]"),
        (stream(1, 4), "revisions are missing: [2]"),
        (stream(0, 1, 2, 3), "revision 3 is not in the journal"),
        (stream(6, 7), "revision 7 is not in the journal"),
    ],
)
def test_a_watch_out_of_order_twice_or_with_a_gap_is_wrong(wrong: WatchStream, why: str) -> None:
    assert list(check_watches([wrong], JOURNAL)) == [f"WATCH g, w: {why}"]


def test_a_line_that_is_shown_as_another_is_wrong() -> None:
    wrong = stream(0, 1)
    wrong.events = [replace(wrong.events[0], kind="kind-2")]

    assert [each.split(",")[0] for each in check_watches([wrong], JOURNAL)] == ["WATCH g"]
