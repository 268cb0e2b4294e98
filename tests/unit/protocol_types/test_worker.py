"""The `worker` type: work is handed out incrementally, and waits for a worker that is likely to come back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.core.assignors.work import HeldBack, Memory, Worker, WorkItem, WorkShare, assign_work
from rota.core.types import MalformedMetadata
from rota.core.types.worker import (
    WorkerState,
    decode_share,
    decode_state,
    encode_share,
    encode_state,
    memory_fields,
    memory_in,
)
from tests.unit.assignors.worlds import deterministic

DELAY_MS = 300_000


class Fleet:
    """Workers that follow their assignments, and the leader's memory."""

    def __init__(self, configured: list[WorkItem], *names: str) -> None:
        self.configured = configured
        self.running: dict[str, tuple[WorkItem, ...]] = dict.fromkeys(names, ())
        self.memory = Memory()
        self.now_ms = 0
        self.weights: dict[WorkItem, float] = {}

    def round(self) -> dict[str, WorkShare]:
        workers = [Worker(f"{name}-id", name, running) for name, running in self.running.items()]
        shares, self.memory = assign_work(
            *(self.configured, workers, self.memory),
            now_ms=self.now_ms,
            scheduled_rebalance_max_delay_ms=DELAY_MS,
            weights=self.weights,
        )
        reported = {worker.identity: shares[worker.member_id] for worker in workers}
        for name, share in reported.items():
            assert not set(share.run) & set(share.revoke)
            self.running[name] = share.run
        all_work = [work for running in self.running.values() for work in running]
        assert len(all_work) == len(set(all_work)), "nothing runs twice"
        return reported

    def settle(self) -> None:
        """Rounds until no worker is asked to stop anything."""
        for _ in range(20):
            if not any(share.revoke for share in self.round().values()):
                return
        raise AssertionError("the fleet does not come to rest")

    def sizes(self) -> list[int]:
        return sorted(len(running) for running in self.running.values())

    def loads(self) -> list[float]:
        """The weight of the tasks of each worker."""
        return [sum(self.weights.get(work, 1) for work in run if work.task >= 0) for run in self.running.values()]

    def idle(self) -> set[WorkItem]:
        return set(self.configured) - {work for running in self.running.values() for work in running}


def tasks(count: int, connector: str = "c") -> list[WorkItem]:
    return [WorkItem(connector), *(WorkItem(connector, number) for number in range(count))]


def a_settled_fleet(*names: str, count: int = 6) -> Fleet:
    fleet = Fleet(tasks(count), *names)
    fleet.settle()
    return fleet


def test_connectors_and_tasks_are_spread_each_for_themselves() -> None:
    fleet = Fleet([*tasks(4, "a"), *tasks(4, "b")], "w0", "w1")

    fleet.round()

    for running in fleet.running.values():
        assert sum(work.task == -1 for work in running) == 1
        assert len(running) == 5


def test_the_work_of_a_departed_worker_waits_for_it() -> None:
    fleet = a_settled_fleet("w0", "w1", "w2")
    lost = fleet.running.pop("w2")

    reported = fleet.round()

    assert fleet.idle() == set(lost)
    assert {share.delay_ms for share in reported.values()} == {DELAY_MS}


def test_a_member_back_in_time_gets_its_own_work_again() -> None:
    fleet = a_settled_fleet("w0", "w1", "w2")
    before = dict(fleet.running)
    del fleet.running["w2"]
    fleet.round()

    fleet.now_ms += DELAY_MS - 1
    fleet.running["w2"] = ()
    reported = fleet.round()

    assert {name: set(running) for name, running in fleet.running.items()} == {n: set(r) for n, r in before.items()}
    assert all(share.revoke == () and share.delay_ms == 0 for share in reported.values())


def test_who_restarts_between_two_rounds_gets_its_work_again_too() -> None:
    fleet = a_settled_fleet("w0", "w1")
    before = set(fleet.running["w1"])
    fleet.running["w1"] = ()

    fleet.round()

    assert set(fleet.running["w1"]) == before


def test_after_the_delay_the_others_take_over() -> None:
    fleet = a_settled_fleet("w0", "w1", "w2")
    del fleet.running["w2"]
    fleet.round()

    fleet.now_ms += DELAY_MS
    fleet.round()

    assert fleet.idle() == set()
    assert fleet.sizes() == [3, 4]


def test_the_delay_counts_from_the_departure() -> None:
    fleet = a_settled_fleet("w0", "w1", "w2")
    del fleet.running["w2"]
    fleet.round()
    fleet.now_ms += 100_000

    reported = fleet.round()

    assert {share.delay_ms for share in reported.values()} == {DELAY_MS - 100_000}


def test_a_newcomer_gets_its_share_after_others_revoked_it() -> None:
    fleet = a_settled_fleet("w0", "w1")
    fleet.running["w2"] = ()

    first = fleet.round()
    assert first["w2"].run == ()
    given_up = [work for share in first.values() for work in share.revoke]

    second = fleet.round()
    assert set(second["w2"].run) == set(given_up)
    assert fleet.sizes() == [2, 2, 3]


def test_what_is_configured_no_more_is_stopped() -> None:
    fleet = a_settled_fleet("w0")
    fleet.configured = tasks(2)

    reported = fleet.round()

    assert [work.task for work in reported["w0"].revoke] == [2, 3, 4, 5]


def test_a_doubly_running_item_is_stopped_by_both_first() -> None:
    work = WorkItem("c", 0)
    workers = [Worker("a", "a", [work]), Worker("b", "b", [work])]

    shares, memory = assign_work([work], workers, Memory(), now_ms=0, scheduled_rebalance_max_delay_ms=0)
    assert shares == {"a": WorkShare(revoke=(work,)), "b": WorkShare(revoke=(work,))}

    idle = [Worker("a", "a"), Worker("b", "b")]
    shares, _ = assign_work([work], idle, memory, now_ms=0, scheduled_rebalance_max_delay_ms=0)
    assert [share.run for share in shares.values()] == [(work,), ()]


def test_a_new_leader_remembers_nothing_and_waits_for_nobody() -> None:
    fleet = a_settled_fleet("w0", "w1")
    del fleet.running["w1"]
    fleet.memory = Memory()

    fleet.round()

    assert fleet.idle() == set()


@deterministic
@given(st.lists(st.integers(0, 5), max_size=12), st.randoms(use_true_random=False))
def test_nothing_runs_twice_and_in_the_end_all_runs_evenly(events: list[int], chance: random.Random) -> None:
    fleet = Fleet([*tasks(5, "a"), *tasks(2, "b")], "w0")
    for event in events:
        fleet.now_ms += chance.choice([0, 1_000, DELAY_MS])
        name = f"w{chance.randrange(5)}"
        if event == 0 and len(fleet.running) > 1:
            fleet.running.pop(name, None)
        elif event == 1:
            fleet.running.setdefault(name, ())
        elif event == 2:
            fleet.configured = [*tasks(chance.randrange(8), "a"), *tasks(2, "b")]
        if not fleet.running:
            fleet.running["w0"] = ()
        fleet.round()

    fleet.now_ms += DELAY_MS
    fleet.settle()

    assert fleet.idle() == set()
    assert fleet.sizes()[-1] - fleet.sizes()[0] <= 2, "one connector and one task more at most"


def test_heavy_tasks_count_for_what_they_weigh() -> None:
    fleet = Fleet(tasks(7), "w0", "w1")
    fleet.weights = {WorkItem("c", 0): 6}

    fleet.settle()

    assert sorted(fleet.loads()) == [6, 6]


def test_a_task_that_becomes_heavy_makes_room_for_itself() -> None:
    fleet = a_settled_fleet("w0", "w1", count=8)
    (worker,) = (name for name, running in fleet.running.items() if WorkItem("c", 0) in running)
    fleet.weights = {WorkItem("c", 0): 5}
    fleet.settle()

    assert WorkItem("c", 0) in fleet.running[worker], "the light ones move"
    assert sorted(fleet.loads()) == [6, 6]


@deterministic
@given(
    st.lists(st.sampled_from([0, 0.1, 1, 1, 2, 3.5, 7, 50]), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_weights_come_to_rest_where_no_move_helps(weights: list[float], before: int, after: int) -> None:
    fleet = Fleet(tasks(len(weights)), *(f"w{number}" for number in range(before)))
    fleet.weights = {WorkItem("c", number): weight for number, weight in enumerate(weights)}
    fleet.settle()
    fleet.running = {f"w{number}": fleet.running.get(f"w{number}", ()) for number in range(after)}
    fleet.round()
    fleet.now_ms += DELAY_MS
    fleet.settle()

    assert fleet.idle() == set()
    least = min(fleet.loads())
    for name, load in zip(fleet.running, fleet.loads(), strict=True):
        movable = [weight for work, weight in fleet.weights.items() if work in fleet.running[name] and weight > 0]
        assert all(weight >= load - least - 1e-6 for weight in movable), (fleet.running, fleet.loads())


def test_the_bytes_carry_the_values_and_are_stable() -> None:
    state = WorkerState("http://w0:8083", 17, (WorkItem("c", 1), WorkItem("c", 0), WorkItem("c")))
    share = WorkShare((WorkItem("c", 0),), (WorkItem("d"),), 1_500)

    assert encode_state(state) == (b'{"version":1,"url":"http://w0:8083","config_offset":17,"running":{"c":[-1,0,1]}}')
    assert encode_share(share) == b'{"version":1,"run":{"c":[0]},"revoke":{"d":[-1]},"delay_ms":1500}'
    assert decode_state(encode_state(state)) == WorkerState(state.url, 17, tuple(sorted(state.running)))
    assert decode_share(encode_share(share)) == share
    assert decode_share(b"") == WorkShare()


def test_a_worker_is_recognised_by_instance_id_or_url() -> None:
    state = WorkerState("http://w0")

    assert state.of_member("m", "instance").identity == "instance"
    assert state.of_member("m").identity == "http://w0"
    assert WorkerState().of_member("m").identity == "m"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":"1"}',
        b'{"version":1,"url":3}',
        b'{"version":1,"running":{"c":[-2]}}',
        b'{"version":1,"running":[]}',
    ],
)
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMetadata):
        decode_state(data)


def test_a_version_to_come_is_read_as_far_as_it_is_known() -> None:
    assert decode_state(b'{"version":9,"url":"u","more":1}') == WorkerState("u")


def test_released_work_runs_nowhere_so_much_moves_at_once() -> None:
    """Else it would be in no share, and as nothing is revoked no second round would follow."""
    connectors = [WorkItem(f"c{number}") for number in range(4)]
    memory = Memory(given={"a": frozenset(connectors[2:])})
    workers = [Worker("m-a", "a"), Worker("m-b", "b", (connectors[0],)), Worker("m-c", "c", (connectors[1],))]
    workers.append(Worker("m-d", "d"))

    shares, _ = assign_work(connectors, workers, memory, now_ms=0, scheduled_rebalance_max_delay_ms=0)

    assert sorted(work for share in shares.values() for work in share.run) == connectors
    assert not any(share.revoke for share in shares.values())


def test_no_worker_stops_work_while_some_is_held_back() -> None:
    tasks = tuple(WorkItem("sink", task) for task in range(4))
    memory = Memory(away={"c": HeldBack(frozenset({WorkItem("sink", 4)}), until_ms=9_000)})
    workers = [Worker("a", "a", tasks), Worker("b", "b")]

    configured = {*tasks, WorkItem("sink", 4)}
    shares, _ = assign_work(configured, workers, memory, now_ms=0, scheduled_rebalance_max_delay_ms=DELAY_MS)

    assert shares["a"] == WorkShare(run=tasks, delay_ms=9_000)
    assert shares["b"] == WorkShare(delay_ms=9_000)


def test_work_that_runs_nowhere_is_moved_before_work_that_runs() -> None:
    returned, runs = WorkItem("sink", 0), WorkItem("sink", 1)
    memory = Memory(given={"a": frozenset({returned})})
    workers = [Worker("a", "a", (runs,)), Worker("b", "b")]

    shares, _ = assign_work({returned, runs}, workers, memory, now_ms=0, scheduled_rebalance_max_delay_ms=0)

    assert shares == {"a": WorkShare(run=(runs,)), "b": WorkShare(run=(returned,))}


@given(left_ms=st.integers(0, DELAY_MS), clocks=st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)))
def test_a_memory_counts_on_by_the_next_leaders_clock(left_ms: int, clocks: tuple[int, int]) -> None:
    before, after = clocks
    held = frozenset({WorkItem("sink", 1)})
    memory = Memory({"a": frozenset({WorkItem("sink"), WorkItem("sink", 0)})}, {"b": HeldBack(held, before + left_ms)})

    share = encode_share(WorkShare(), **memory_fields(memory, before))

    assert memory_in(share, after) == Memory(memory.given, {"b": HeldBack(held, after + left_ms)})


@pytest.mark.parametrize(
    "memory", [[], "x", {}, {"given": []}, {"given": {}, "away": {"b": {"run": {}}}}, {"given": 1}]
)
def test_a_memory_of_another_shape_is_malformed(memory: object) -> None:
    with pytest.raises(MalformedMetadata, match='"memory" must be'):
        memory_in(encode_share(WorkShare(), memory=memory), 0)


def test_a_share_of_an_earlier_release_has_no_memory() -> None:
    assert memory_in(b"", 0) is None
    assert memory_in(encode_share(WorkShare()), 0) is None
