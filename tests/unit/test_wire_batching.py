"""Several messages in one: all that wait, within bounds, in their order."""

from __future__ import annotations

from collections import deque

from rota.protocol.wire.batching import MAX_BATCH, MAX_BATCH_BYTES, dump_next, split_batch
from rota.v1.coordinator_pb2 import JoinGroupRequest, SessionRequest


def sizes(count: int, of_bytes: int = 0) -> list[int]:
    """How many of as many queued messages go into each that is sent; checks that they come back as they were."""
    sent = [SessionRequest(call=n + 1, join=JoinGroupRequest(client_id="x" * of_bytes)) for n in range(count)]
    queue = deque(sent)
    messages = []
    while queue:
        messages.append(dump_next(queue))
    received = [each for message in messages for each in split_batch(SessionRequest, message)]
    assert [SessionRequest.FromString(each) for each in received] == sent
    return [len(SessionRequest.FromString(message).batch) for message in messages]


def test_one_alone_goes_as_itself() -> None:
    assert sizes(1) == [0]


def test_all_that_wait_go_together_up_to_a_number() -> None:
    assert sizes(3) == [3]
    assert sizes(MAX_BATCH + 2) == [MAX_BATCH, 2]


def test_large_ones_do_not_make_one_that_nobody_takes() -> None:
    assert sizes(5, MAX_BATCH_BYTES // 2 - 100) == [2, 2, 0]
    assert sizes(2, MAX_BATCH_BYTES) == [0, 0]
