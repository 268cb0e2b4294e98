"""Why a group is as it is, in words: the core's state, explained to people."""

from __future__ import annotations

import pytest
from msgspec import structs

from rota.core.group.records import encode_entry
from rota.core.types import permits
from rota.protocol import messages as m
from rota.protocol.fencing_token import fencing_token
from rota.protocol.wording import duration
from rota.server.observability.explanation import Explanation, Mood, explain
from rota.server.observability.generations import Event, Generation, generations
from tests.unit.group.driver import (
    GROUP_ID,
    NAMESPACE,
    SESSION_MS,
    Core,
    a_group_in_a_join_phase,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    everybody_again,
)
from tests.unit.group.served import Listed, a_served_group
from tests.unit.group.test_preemption import HOLD_MS, a_race, keep_alive


def history(core: Core) -> list[Event]:
    """The group's lines of the journal, as HTTP shows them."""
    return [
        {**encode_entry(entry), "revision": number} for number, entry in enumerate(core.journal, 1) if entry.group_id
    ]


def explained(core: Core) -> Explanation:
    described = core.ask(m.DescribeGroup(NAMESPACE, GROUP_ID))
    return explain(described, core.now_ms, history(core), lambda at_ms: f"t{at_ms}")


def said(shown: Explanation, about: str) -> list[str]:
    return [point.text for point in shown.points if point.about == about]


def test_a_stable_group_names_its_leader_and_its_token() -> None:
    core = a_stable_group(members=2)

    shown = explained(core)

    assert shown.mood is Mood.CALM
    assert shown.headline == "Stable for 0 ms: 2 members in generation 1, all have joined."
    token = f"its fencing token is {fencing_token(1)}, of generation 1"
    assert said(shown, "leader") == [f"m0 leads (last heartbeat 0 ms ago, expires in 10 s); {token}."]
    (because,) = said(shown, "because")
    assert because.startswith("The last rebalance began 600 ms ago: member m0 joined. It took 600 ms.")


def test_a_rebalance_names_who_is_waited_for_and_until_when() -> None:
    core = a_group_in_a_join_phase(members=3)
    core.advance(2_000)
    core.ask(a_heartbeat("m0", 1))
    core.advance(500)

    shown = explained(core)

    assert shown.headline == "Rebalancing for 2.5 s: 1 of 3 members joined, waiting for m0 and m1 to join again."
    assert said(shown, "until")[0].endswith("28 s from now; then it continues without the missing members.")
    assert said(shown, "waits for") == [
        "m0 (last heartbeat 500 ms ago, expires in 9.5 s) did not join again yet.",
        "m1 (last heartbeat 2.5 s ago, expires in 7.5 s) did not join again yet.",
    ]
    assert said(shown, "blocked") == [
        "No member gets a new share before that. Members of generation 1 may still commit."
    ]
    assert "member m2 changed its metadata" in said(shown, "because")[0]


def test_the_worst_trouble_is_the_headline_with_what_to_type_and_the_state_below() -> None:
    core = a_group_in_a_join_phase(members=3)
    core.advance(7_000)
    core.ask(a_heartbeat("m0", 1))

    shown = explained(core)

    assert shown.mood is Mood.WAITING
    assert shown.headline.startswith(
        "It has rebalanced for 7.0 s and waits for m1 (last heartbeat 7.0 s ago) and 1 other to"
    )
    assert [(each.about, each.text[:42]) for each in shown.points[:2]] == [
        ("type", "`rota groups remove-member g m1`"),
        ("state", "Rebalancing for 7.0 s: 1 of 3 members join"),
    ]


def test_members_that_expire_again_and_again_are_worth_a_look() -> None:
    core = a_stable_group(members=4)
    assert explained(core).mood is Mood.CALM
    for _ in range(3):
        core.advance(SESSION_MS - 1_000)
        for member_id in list(core.group.members)[:-1]:
            core.ask(a_heartbeat(member_id, core.generation_id))
        core.advance(1_100)
        everybody_again(core)
        assigned(core)

    shown = explained(core)

    assert shown.mood is Mood.WAITING
    assert said(shown, "lately") == ["4 changes within 10 min: 3 × member expired, 1 × member joined."]


def test_copies_that_fence_each_other_are_named_and_counted() -> None:
    core = a_stable_group(members=2, static=2)
    for number in range(4):
        core.advance(1_000)
        core.ask(a_heartbeat("m0", 1, instance="i0"))
        core.ask(structs.replace(a_join(new=f"copy-{number}", instance="i1"), host=f"10.0.0.{number % 2}"))

    shown = explained(core)

    assert shown.mood is Mood.WAITING
    assert shown.headline.startswith(
        "i1 was taken over 4 times within 10 min, the last time because another process at 10.0.0.1"
    )
    assert said(shown, "lately") == ["5 changes within 10 min: 4 × takeover, 1 × member joined."]


def test_a_group_whose_last_member_expired_names_the_expiry() -> None:
    core = a_stable_group(members=1)
    core.advance(SESSION_MS)
    expired = f"member m0 expired: no heartbeat within its session timeout of {SESSION_MS} ms"

    shown = explained(core)
    without_history = explain(core.ask(m.DescribeGroup(NAMESPACE, GROUP_ID)), core.now_ms)

    assert said(shown, "because") == [f"The last member went: {expired}."]
    assert said(shown, "lately") == ["2 changes within 10 min: 1 × member joined, 1 × member expired."]
    assert said(without_history, "because") == [f"The last member went: {expired}."]
    assert story(core)[-1].cause == "member_expired"


# --- generations --------------------------------------------------------------------------------------


def assigned(core: Core, **shares: bytes) -> None:
    core.ask(a_sync(core.leader_id, core.generation_id, None, **shares))


def story(core: Core) -> list[Generation]:
    return generations(history(core))


def test_each_generation_names_joins_leaves_and_shares() -> None:
    core = a_stable_group(members=2)
    core.ask(a_leave("m1"))
    core.send(a_join("m0"))
    assigned(core, m0=b"everything")

    first, second = story(core)

    assert (first.generation_id, first.member_ids, first.leader_id) == (1, ("m0", "m1"), "m0")
    assert first.cause == "member_joined"
    assert (first.took_ms, first.assignments) == (600, {"m0": b"m0", "m1": b"m1"})
    assert (second.generation_id, second.reason, second.member_ids) == (2, "m1 left", ("m0",))
    assert [(one.member_id, one.how) for one in second.departed] == [("m1", "left")]
    assert second.assignments == {"m0": b"everything"}


def test_a_rebalance_under_way_is_the_last_generation() -> None:
    core = a_group_in_a_join_phase(members=2)

    last = story(core)[-1]

    assert (last.generation_id, last.completed_at_ms, last.took_ms) == (2, None, None)
    assert last.cause == "metadata_changed"


def test_lines_from_the_middle_make_no_member_a_newcomer() -> None:
    core = a_stable_group(members=2)
    core.ask(m.RebalanceGroup(NAMESPACE, GROUP_ID))
    everybody_again(core)
    lines = history(core)
    begins = next(number for number, line in enumerate(lines) if line["reason"].startswith("a rebalance"))

    (only,) = generations(lines[begins:])

    assert (only.joined, only.member_ids) == ((), ("m0", "m1"))


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (-5, "0 ms"),
        (999, "999 ms"),
        (4_240, "4.2 s"),
        (42_400, "42 s"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
    ],
)
def test_durations_have_the_two_units_that_matter(ms: int, words: str) -> None:
    assert duration(ms) == words


def test_a_group_with_permits_names_holders_and_the_next() -> None:
    wish: Listed = ((permits.PROTOCOL_NAME, permits.encode_wish(permits.Wish(1))),)
    shown = explained(a_served_group(wish, 3, permits.PROTOCOL_TYPE))

    assert said(shown, "permits") == [f"1 of 1 are held: 0 by m0 with token {fencing_token(1)}."]
    assert said(shown, "line") == ["2 members in line; m1 gets the next permit."]


def test_an_election_names_priorities_and_the_due_hand_over() -> None:
    core = a_race(1, 5)
    shown = explained(core)
    assert said(shown, "priorities") == ["m1 has 5, m0 has 1."]
    assert said(shown, "hand-over") == [f"At t{core.now_ms + HOLD_MS}, 2.0 s from now, a higher priority takes over."]

    keep_alive(core, HOLD_MS)

    assert said(explained(core), "hand-over") == ["The leader was asked to hand over to m1, and ends its work."]
