"""The independent checks find each kind of wrong history, and accept what may happen under faults."""

from __future__ import annotations

import pytest

from rota.client.transports.port import GroupEvent
from rota.core.replica.ports import JournalEvent
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
from rota.protocol.wire.replies import Received
from tests.faults.histories import Exchange, WatchStream, check_commits, check_holders, check_watches
from tests.faults.linearizable import NEVER

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
