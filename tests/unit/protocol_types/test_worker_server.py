"""One round of `server:incremental`: what a worker may run without saying so, and the memory in departed shares."""

from __future__ import annotations

from collections.abc import Sequence

from rota.core.assignors.work import HeldBack, WorkItem, WorkShare
from rota.core.types import Departed, Generation, JoinedWith, TopicFacts
from rota.core.types.worker import (
    PROTOCOL_NAME,
    GivenWork,
    WorkerState,
    again_at_ms,
    assign,
    decode_given,
    encode_given,
    encode_state,
)

ORDERS = {"orders": TopicFacts(3)}
CONNECTOR, *TASKS = (WorkItem("orders", task) for task in (-1, 0, 1, 2))


def a_worker(name: str, former: GivenWork | None = None, running: tuple[WorkItem, ...] = ()) -> JoinedWith:
    metadata = encode_state(WorkerState(f"http://{name}", running=running, topics=("orders",)))
    return JoinedWith(name, None, metadata, encode_given(former, 1) if former is not None else b"")


def the_round(members: Sequence[JoinedWith], *departed: Departed) -> dict[str, GivenWork]:
    generation = Generation(2, members[0].member_id, PROTOCOL_NAME, members, departed=departed, now_ms=10_000)
    return {member_id: decode_given(share) for member_id, share in assign(generation, ORDERS).items()}


def test_a_worker_that_joined_before_its_share_came_may_run_it() -> None:
    """It joins with its former work, and reads its last share after that."""
    former = GivenWork(WorkShare(run=(CONNECTOR, *TASKS)))

    shares = the_round([a_worker("a", former), a_worker("b")])

    assert shares["b"].share.run == (), "not before `a` has stopped it"
    assert shares["a"].share.revoke != ()


def test_work_held_back_by_a_departed_share_is_still_held_back() -> None:
    waits = HeldBack(frozenset(TASKS[1:]), until_ms=60_000)
    former = encode_given(GivenWork(WorkShare(run=(CONNECTOR, TASKS[0])), {"http://b": waits}), 1)
    last = Departed("a", None, a_worker("a").metadata, former, at_ms=10_000)

    given = the_round([a_worker("c")], last)["c"]

    assert given.share.run == ()
    assert given.away.keys() == {"http://a", "http://b"}
    assert given.away["http://b"] == waits


def test_the_first_work_that_has_waited_enough_is_given_out() -> None:
    away = {f"http://{name}": HeldBack(frozenset(), until_ms) for name, until_ms in (("b", 70_000), ("c", 60_000))}

    assert again_at_ms({"a": encode_given(GivenWork(away=away), 1)}) == 60_000
    assert again_at_ms({"a": encode_given(GivenWork(), 1)}) is None
