"""Elections by priority in the core: a leader is asked to hand over, ends its work, and the candidate follows it."""

from __future__ import annotations

import pytest

from rota.core.group.state import Timer, TimerKind
from rota.core.types.leader import Candidate, Election, decode_election, encode_candidate
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import HeartbeatMany, MemberHeartbeat, RebalanceGroup
from tests.unit.group.driver import GROUP_ID, KEY, NAMESPACE, Core, a_heartbeat, a_join, a_leave, a_sync, an_empty_shard
from tests.unit.group.served import Listed, end_join_phase, join

HOLD_MS = 2_000


def saying(priority: int = 0, *, holding: bool | None = False, hold_ms: int | None = HOLD_MS) -> Listed:
    return (("single", encode_candidate(Candidate("", priority, hold_ms, holding))),)


def a_race(*priorities: int) -> Core:
    """`m0` leads, since it was the first; the others came later, with these priorities. `m0` is at work."""
    core = an_empty_shard()
    join(core, "m0", saying(priorities[0]), "leader")
    end_join_phase(core)
    for number, priority in enumerate(priorities[1:], 1):
        join(core, f"m{number}", saying(priority), "leader")
    rejoin(core, priorities)
    return core


def rejoin(core: Core, priorities: tuple[int, ...], *, holding: bool | None = True) -> None:
    for number, priority in enumerate(priorities):
        leads = f"m{number}" == core.leader_id
        join(core, f"m{number}", saying(priority, holding=holding if leads else False), "leader")
    end_join_phase(core)
    core.ask(a_sync(core.leader_id, core.generation_id))


def keep_alive(core: Core, ms: int) -> None:
    for _ in range(ms // 100):
        core.advance(100)
        for member_id in list(core.group.members):
            core.ask(a_heartbeat(member_id, core.generation_id))


def election(core: Core, member_id: str) -> Election:
    return decode_election(core.ask(a_sync(member_id, core.generation_id)).assignment)


def test_without_a_leader_the_highest_priority_is_elected() -> None:
    core = an_empty_shard()
    for number, priority in enumerate((1, 7, 7)):
        join(core, f"m{number}", saying(priority), "leader")
    end_join_phase(core)

    assert election(core, "m0") == Election("m1", fencing_token(1))

    core.ask(a_leave("m1"))
    for number, priority in ((0, 1), (2, 7)):
        join(core, f"m{number}", saying(priority), "leader")

    assert core.leader_id == "m2"


def test_the_priority_decides_where_the_leader_has_left() -> None:
    core = an_empty_shard()
    for number in range(3):
        join(core, f"m{number}", saying(number, holding=None), "leader")
    end_join_phase(core)

    core.ask(a_leave("m2"))
    for number in range(2):
        join(core, f"m{number}", saying(number, holding=None), "leader")

    assert core.leader_id == "m1"


def test_an_outranked_leader_is_asked_to_hand_over_in_time() -> None:
    core = a_race(1, 5)
    generation_id = core.generation_id

    keep_alive(core, HOLD_MS - 100)
    assert (core.leader_id, core.generation_id, core.group.state) == ("m0", generation_id, "Stable")

    keep_alive(core, 100)
    assert (core.generation_id, core.group.state) == (generation_id + 1, "Stable")
    assert election(core, "m0") == Election("m0", fencing_token(generation_id + 1), successor_id="m1")
    assert core.last("assignment_synced").reason == (
        "candidate m1 of priority 5 has outranked leader m0 of priority 1 for 2000 ms: it is asked to hand over to m1"
    )


def test_the_candidate_leads_once_the_leaders_work_has_ended() -> None:
    core = a_race(1, 5)
    keep_alive(core, 3 * HOLD_MS)
    assert core.leader_id == "m0"

    rejoin(core, (1, 5), holding=False)

    assert core.leader_id == "m1"
    assert election(core, "m0") == Election("m1", fencing_token(core.generation_id))
    assert core.last("leader_changed").reason == "leader m0 hands over to m1"
    assert core.last("rebalance_started").by == "m0"


def test_a_join_of_before_the_election_ends_no_work() -> None:
    core = a_race(1, 5)

    core.send(a_join("m0", protocols=saying(1), protocol_type="leader"))
    join(core, "m1", saying(5), "leader")
    end_join_phase(core)

    assert core.leader_id == "m0"


def test_a_parked_heartbeat_notifies_the_leader_at_once() -> None:
    core = a_race(1, 5)
    parked = core.send(a_heartbeat("m0", core.generation_id, wait_ms=30_000))

    core.advance(HOLD_MS)

    assert core.answer(parked).generation_id == core.generation_id


def test_a_leader_that_joins_for_another_reason_is_asked_again() -> None:
    core = a_race(1, 5)
    keep_alive(core, HOLD_MS)

    rejoin(core, (1, 5), holding=True)
    assert (core.leader_id, core.last("rebalance_started").reason) == ("m0", "leader m0 joined again")

    keep_alive(core, 100)
    assert election(core, "m0").successor_id == "m1"


def test_a_candidate_that_comes_and_goes_never_preempts() -> None:
    core = a_race(1, 5)
    for number in range(2, 6):
        keep_alive(core, HOLD_MS - 500)
        core.ask(a_leave(core.ids.pop()))
        join(core, "m0", saying(1, holding=True), "leader")
        join(core, f"m{number}", saying(5), "leader")
        join(core, "m0", saying(1, holding=True), "leader")

    assert core.leader_id == "m0"
    assert "hand over" not in " ".join(entry.record.reason for entry in core.journal if hasattr(entry.record, "reason"))


def test_the_time_counts_from_the_last_change_of_either_priority() -> None:
    core = a_race(1, 1)
    keep_alive(core, HOLD_MS)
    rejoin(core, (0, 1))
    keep_alive(core, HOLD_MS - 100)
    rejoin(core, (0, 2))
    keep_alive(core, HOLD_MS - 100)
    assert not election(core, "m0").successor_id

    keep_alive(core, 100)
    assert election(core, "m0").successor_id == "m1"


def test_a_new_leader_has_the_whole_time_before_it_is_asked() -> None:
    core = a_race(1, 5, 1)
    keep_alive(core, HOLD_MS)
    rejoin(core, (1, 5, 9), holding=False)
    assert core.leader_id == "m1"
    elected_ms = core.now_ms

    while not election(core, "m1").successor_id:
        keep_alive(core, 100)

    assert core.now_ms == elected_ms + HOLD_MS
    assert election(core, "m1").successor_id == "m2"


def test_of_several_candidates_that_are_due_the_best_follows() -> None:
    core = a_race(1, 5, 9)

    keep_alive(core, HOLD_MS)

    assert election(core, "m0").successor_id == "m2"


def test_the_best_follows_although_another_was_due_before_it() -> None:
    """The leader is asked when it fetches its share: both candidates have waited for long enough by then."""
    core = an_empty_shard()
    join(core, "m0", saying(0), "leader")
    end_join_phase(core)
    join(core, "m1", saying(5, hold_ms=1_000), "leader")
    join(core, "m2", saying(9, hold_ms=2_000), "leader")
    join(core, "m1", saying(5, hold_ms=1_000), "leader")
    join(core, "m0", saying(0, holding=True), "leader")
    core.advance(HOLD_MS)

    core.ask(a_sync("m0", core.generation_id))
    core.advance(0)

    assert election(core, "m0").successor_id == "m2"


def test_a_timer_that_does_not_count_asks_no_leader() -> None:
    core = a_race(1, 5)

    result = core.shard.on_timer(Timer(TimerKind.PREEMPT, *KEY, "", core.now_ms), core.now_ms)

    assert (result.timers, result.records) == ([], [])


def test_a_leader_of_before_a_failover_need_not_fetch_again() -> None:
    core = a_race(1, 5)
    core.restart()
    generation_id = core.generation_id

    keep_alive(core, HOLD_MS)

    assert core.generation_id == generation_id + 1


@pytest.mark.parametrize("hold_ms", [None, 60_000])
def test_a_candidate_may_say_that_it_preempts_later_or_never(hold_ms: int | None) -> None:
    core = an_empty_shard()
    join(core, "m0", saying(0), "leader")
    end_join_phase(core)
    join(core, "m1", saying(5, hold_ms=hold_ms), "leader")
    join(core, "m0", saying(0, holding=True), "leader")

    keep_alive(core, 5 * HOLD_MS)
    assert not election(core, "m0").successor_id

    core.ask(a_leave("m0"))
    join(core, "m1", saying(5, hold_ms=hold_ms), "leader")
    assert core.leader_id == "m1"


def test_a_leader_that_reports_no_work_is_never_asked() -> None:
    core = an_empty_shard()
    join(core, "m0", saying(0, holding=None), "leader")
    end_join_phase(core)
    join(core, "m1", saying(5), "leader")
    join(core, "m0", saying(0, holding=None), "leader")
    generation_id = core.generation_id

    keep_alive(core, 3 * HOLD_MS)

    assert (core.leader_id, core.generation_id) == ("m0", generation_id)


def test_a_new_owner_restarts_the_time_and_knows_who_was_asked() -> None:
    core = a_race(1, 5)
    keep_alive(core, HOLD_MS - 100)
    core.restart()
    keep_alive(core, HOLD_MS - 100)
    assert not election(core, "m0").successor_id
    keep_alive(core, 100)
    assert election(core, "m0").successor_id == "m1"

    core.restart()
    generation_id = core.generation_id
    keep_alive(core, 2 * HOLD_MS)
    assert core.generation_id == generation_id

    rejoin(core, (1, 5), holding=False)
    assert core.leader_id == "m1"


def test_a_leader_is_not_asked_before_it_has_fetched_its_share() -> None:
    """Its sync would be of the generation before: it would lose the work that it has to hand over in order."""
    core = an_empty_shard()
    join(core, "m0", saying(0), "leader")
    end_join_phase(core)
    join(core, "m1", saying(5, hold_ms=0), "leader")
    join(core, "m0", saying(0, holding=True), "leader")
    generation_id = core.generation_id
    core.advance(HOLD_MS)
    assert core.generation_id == generation_id

    assert election(core, "m0") == Election("m0", fencing_token(generation_id))
    core.advance(0)

    assert election(core, "m0").successor_id == "m1"


@pytest.mark.parametrize("together", [False, True])
def test_a_heartbeat_shows_that_a_leader_has_its_share(together: bool) -> None:
    core = an_empty_shard()
    join(core, "m0", saying(0), "leader")
    end_join_phase(core)
    join(core, "m1", saying(5, hold_ms=0), "leader")
    joined = core.answer(join(core, "m0", saying(0, holding=True), "leader"))
    assert decode_election(joined.assignment).leader_id == "m0"

    beat = MemberHeartbeat("m0", core.generation_id)
    core.ask(HeartbeatMany(*KEY, (beat,)) if together else a_heartbeat("m0", core.generation_id))
    core.advance(0)

    assert election(core, "m0").successor_id == "m1"


def test_a_heartbeat_that_is_refused_shows_nothing() -> None:
    core = an_empty_shard()
    core.send(a_join(new="i-1", instance="i", protocols=saying(0), protocol_type="leader"))
    end_join_phase(core)
    join(core, "m1", saying(5, hold_ms=0), "leader")
    core.send(a_join("i-1", instance="i", protocols=saying(0, holding=True), protocol_type="leader"))
    generation_id = core.generation_id

    stranger = MemberHeartbeat("i-1", generation_id, "another instance")
    assert core.ask(HeartbeatMany(*KEY, (stranger,))).errors
    core.advance(0)

    assert core.generation_id == generation_id


def test_a_static_candidate_in_a_new_process_waits_anew() -> None:
    core = an_empty_shard()
    join(core, "m0", saying(1), "leader")
    end_join_phase(core)
    core.send(a_join(new="i-1", instance="i", protocols=saying(5), protocol_type="leader"))
    join(core, "m0", saying(1, holding=True), "leader")
    keep_alive(core, HOLD_MS - 100)
    core.send(a_join(new="i-2", instance="i", protocols=saying(5), protocol_type="leader"))

    keep_alive(core, HOLD_MS - 100)
    assert not election(core, "m0").successor_id

    keep_alive(core, 100)
    assert election(core, "m0").successor_id == "i-2"


def a_race_with_an_absent_static_candidate() -> Core:
    """`i-1` outranks `m0`, which was asked to hand over, has ended its work and joined again: `i-1` has not."""
    core = an_empty_shard()
    join(core, "m0", saying(1), "leader")
    end_join_phase(core)
    core.send(a_join(new="i-1", instance="i", protocols=saying(5), protocol_type="leader", session_ms=60_000))
    join(core, "m0", saying(1, holding=True), "leader")
    core.ask(a_sync("m0", core.generation_id))
    while not election(core, "m0").successor_id:
        core.advance(100)
        core.ask(a_heartbeat("m0", core.generation_id))
    join(core, "m0", saying(1, holding=False), "leader")
    end_join_phase(core)
    core.ask(a_sync("m0", core.generation_id))
    return core


def test_a_leader_is_not_asked_again_for_an_absent_candidate() -> None:
    """Each generation that completes begins the session of an absent static member anew: it would never expire."""
    core = a_race_with_an_absent_static_candidate()
    assert (core.leader_id, "i-1" in core.group.members) == ("m0", True)
    generation_id = core.generation_id

    core.ask(RebalanceGroup(NAMESPACE, GROUP_ID, "its machine goes away", step_down=True))
    end_join_phase_with(core, "m0")
    generation_id += 1
    for _ in range(650):
        core.advance(100)
        if core.group.state == "PreparingRebalance":
            break
        assert (core.generation_id, core.group.preempt_at_ms) == (generation_id, None)
        core.ask(a_heartbeat("m0", core.generation_id))

    assert "i-1" not in core.group.members


def end_join_phase_with(core: Core, member_id: str) -> None:
    join(core, member_id, saying(1, holding=False), "leader")
    end_join_phase(core)
    core.ask(a_sync(member_id, core.generation_id))


def test_an_absent_candidate_that_returns_is_waited_for_again() -> None:
    core = a_race_with_an_absent_static_candidate()

    core.send(a_join(new="i-2", instance="i", protocols=saying(5), protocol_type="leader", session_ms=60_000))
    keep_alive(core, HOLD_MS)

    assert election(core, "m0").successor_id == "i-2"


def test_an_absent_candidate_that_fetches_is_waited_for_again() -> None:
    """It was only slow: the same process joins the generation that went on without it."""
    core = a_race_with_an_absent_static_candidate()

    core.ask(a_join("i-1", instance="i", protocols=saying(5), protocol_type="leader", session_ms=60_000))
    core.ask(a_sync("i-1", core.generation_id, "i"))
    keep_alive(core, HOLD_MS)

    assert election(core, "m0").successor_id == "i-1"


def test_a_leader_hands_over_to_the_successors_new_process() -> None:
    core = an_empty_shard()
    join(core, "m0", saying(1), "leader")
    end_join_phase(core)
    core.send(a_join(new="i-1", instance="i", protocols=saying(5), protocol_type="leader"))
    rejoin(core, (1,))
    core.ask(a_sync("i-1", core.generation_id, "i"))
    keep_alive(core, HOLD_MS)
    assert election(core, "m0").successor_id == "i-1"

    core.send(a_join(new="i-2", instance="i", protocols=saying(5), protocol_type="leader"))
    join(core, "m0", saying(1, holding=False), "leader")

    assert core.last("rebalance_started").reason == "leader m0 hands over to i-2"


def test_a_static_leaders_successor_fetches_before_it_is_asked() -> None:
    core = an_empty_shard()
    core.send(a_join(new="i-1", instance="i", protocols=saying(5), protocol_type="leader"))
    end_join_phase(core)
    join(core, "m1", saying(3, hold_ms=0), "leader")
    core.send(a_join("i-1", instance="i", protocols=saying(5, holding=True), protocol_type="leader"))
    core.ask(a_sync("i-1", core.generation_id, "i"))
    generation_id = core.generation_id

    core.send(a_join(new="i-2", instance="i", protocols=saying(1), protocol_type="leader"))
    core.advance(0)
    assert (core.leader_id, core.generation_id) == ("i-2", generation_id)

    core.ask(a_sync("i-2", core.generation_id, "i"))
    core.advance(0)
    assert election(core, "m1").successor_id == "m1"


def test_a_leader_hands_over_only_when_its_work_has_ended() -> None:
    core = a_race(0, 0)
    request = RebalanceGroup(NAMESPACE, GROUP_ID, "its machine goes away", step_down=True)

    reply = core.ask(request)
    assert (core.leader_id, reply.generation_id, core.group.state) == ("m0", core.generation_id, "Stable")
    assert election(core, "m0").successor_id == "m1"
    assert core.last("assignment_synced").reason == (
        "leader m0 was asked to step down: its machine goes away: it is asked to hand over to m1"
    )

    rejoin(core, (0, 0), holding=False)
    assert core.leader_id == "m1"


def test_a_leader_of_before_a_failover_hands_over_at_once() -> None:
    core = a_race(0, 0)
    core.restart()

    core.ask(RebalanceGroup(NAMESPACE, GROUP_ID, step_down=True))

    assert election(core, "m0").successor_id == "m1"


def test_a_leader_that_is_alone_steps_down_as_before() -> None:
    core = a_race(0)

    core.ask(RebalanceGroup(NAMESPACE, GROUP_ID, step_down=True))

    assert core.group.state == "PreparingRebalance"


def test_a_leader_that_rejoined_alone_steps_down_no_more() -> None:
    core = a_race(0)
    core.ask(RebalanceGroup(NAMESPACE, GROUP_ID, step_down=True))
    rejoin(core, (0,))

    join(core, "m1", saying(), "leader")
    rejoin(core, (0, 0))
    core.advance(0)

    assert (core.leader_id, election(core, "m0").successor_id) == ("m0", "")


def test_a_leader_with_no_work_steps_down_whatever_its_priority() -> None:
    core = a_race(5)
    core.ask(a_join(new="m1", protocols=saying(), protocol_type="leader"))
    core.ask(RebalanceGroup(NAMESPACE, GROUP_ID, step_down=True))
    core.ids.append("m1")

    rejoin(core, (5, 0), holding=False)

    assert core.leader_id == "m1"


def test_a_lone_leader_steps_down_for_a_member_that_joins() -> None:
    core = a_race(0)
    core.ask(a_join(new="m1", protocols=saying(), protocol_type="leader"))
    core.ask(RebalanceGroup(NAMESPACE, GROUP_ID, step_down=True))
    core.ids.append("m1")

    rejoin(core, (0, 0))
    assert core.leader_id == "m0"

    core.advance(0)
    assert election(core, "m0").successor_id == "m1"
