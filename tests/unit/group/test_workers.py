"""Connectors and tasks that the coordinator shares out (`server:incremental`): rounds, delays, weights, restarts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from rota.core.group.state import Timer, TimerKind
from rota.core.types import TopicFacts
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import FreezeGroup
from tests.unit.group.driver import KEY, a_join, an_empty_shard
from tests.unit.group.fleet import DELAY_MS, NAME, ORDERS, Fleet
from tests.unit.group.served import the_job


def test_a_newcomer_gets_its_share_once_others_have_stopped_it() -> None:
    fleet = Fleet("a", "b")
    rounds = fleet.rounds

    fleet.start("c")
    fleet.settle()

    assert sorted(fleet.tasks(name) for name in "abc") == [1, 1, 2]
    assert fleet.idle() == 0
    assert fleet.rounds - rounds == 2


@pytest.mark.parametrize("departed", ["a", "b"], ids=["leader", "follower"])
def test_the_work_of_a_departed_worker_waits_for_it(departed: str) -> None:
    fleet = Fleet("a", "b", "c")
    (stays, other) = (name for name in "abc" if name != departed)
    before, missed = dict(fleet.running), fleet.running[departed]
    left_ms = fleet.core.now_ms
    fleet.leave(departed)
    fleet.settle()
    assert (fleet.running[stays], fleet.running[other]) == (before[stays], before[other])
    held = {"run": missed, "until_ms": left_ms + DELAY_MS}
    assert fleet.reported(stays)["away"] == {f"http://{departed}": held}

    fleet.wait(DELAY_MS - 5_000)
    fleet.start(departed)
    fleet.settle()

    assert fleet.running == before


def test_work_that_waits_in_a_freeze_is_given_out_at_its_end() -> None:
    fleet = Fleet("a", "b", "c")
    fleet.leave("a")
    fleet.settle()
    until_ms = fleet.core.ask(FreezeGroup(*KEY, 2 * DELAY_MS)).frozen_until_ms

    fleet.wait(DELAY_MS)

    asked = {timer for *_, timer in fleet.core._timers if timer.kind is TimerKind.ASSIGN}
    assert asked == {Timer(TimerKind.ASSIGN, *KEY, "", until_ms)}, "once, not all the time"
    assert fleet.idle() > 0
    fleet.wait(DELAY_MS)
    fleet.settle()
    assert fleet.idle() == 0


def test_the_delay_counts_from_the_departure_despite_changes() -> None:
    fleet = Fleet("a", "b", "c")
    fleet.leave("a")
    fleet.settle()
    fleet.wait(DELAY_MS // 2)
    fleet.start("d")
    fleet.settle()
    assert fleet.tasks("d") == 0, "no work moves while some waits"

    fleet.wait(DELAY_MS // 2)
    fleet.settle()

    assert fleet.idle() == 0


def test_all_that_left_are_waited_for_each_for_itself() -> None:
    fleet = Fleet("a", "b", "c", "d")
    before = dict(fleet.running)
    for name in ("a", "b"):
        fleet.leave(name)
        fleet.settle()
        fleet.wait(10_000)
    assert set(fleet.reported("c")["away"]) == {"http://a", "http://b"}

    fleet.start("b")
    fleet.settle()
    assert fleet.running["b"] == before["b"]
    fleet.wait(DELAY_MS)
    fleet.settle()

    assert fleet.idle() == 0


def test_waiting_survives_the_owner_of_the_shard() -> None:
    fleet = Fleet("a", "b", "c")
    fleet.leave("a")
    fleet.settle()
    missed = fleet.idle()
    generation_id = fleet.core.generation_id

    fleet.core.restart()
    fleet.assign()
    assert fleet.core.generation_id == generation_id, "the new owner finds nothing to change"
    fleet.wait(DELAY_MS - 10_000)
    assert fleet.idle() == missed
    fleet.wait(10_000)
    fleet.settle()

    assert fleet.idle() == 0


def test_an_owner_with_a_late_clock_waits_one_more_delay_at_most() -> None:
    fleet = Fleet("a", "b", "c")
    fleet.leave("a")
    fleet.settle()

    job, later = the_job(fleet.core), b'"until_ms":%d' % (fleet.core.now_ms + 3_600_000)
    members = [replace(each, former=re.sub(rb'"until_ms":\d+', later, each.former)) for each in job.generation.members]
    shares = job.side.assign(replace(job.generation, members=members, now_ms=fleet.core.now_ms), ORDERS)

    assert job.side.again_at_ms is not None
    assert job.side.again_at_ms(shares) == fleet.core.now_ms + DELAY_MS


def test_a_departure_hidden_by_an_owners_crash_is_caught_up() -> None:
    """What it ran is not remembered: it is given to others without a delay, and runs nowhere twice."""
    fleet = Fleet("a", "b", "c")
    fleet.leave("a")

    fleet.core.restart()
    fleet.settle()

    assert fleet.idle() == 0


def test_a_connector_that_grows_is_a_resync() -> None:
    fleet = Fleet("a", "b")
    generation_id = fleet.core.generation_id
    fleet.topics = {"orders": TopicFacts(6)}

    fleet.assign()
    fleet.settle()

    assert fleet.core.generation_id == generation_id + 1
    assert [fleet.tasks("a"), fleet.tasks("b")] == [3, 3]
    assert fleet.core.last("assignment_synced").reason.endswith("by server:incremental: orders 4 → 6")


def test_the_furthest_configuration_is_the_truth() -> None:
    """A worker that has not read as far reads on before it begins."""
    fleet = Fleet("a")
    assert "config_offset" not in fleet.reported("a")
    fleet.config_offsets = {"a": 5, "b": 7}

    fleet.start("b")
    fleet.settle()

    assert (fleet.reported("a")["config_offset"], fleet.reported("b")["config_offset"]) == (7, 7)


def test_the_journal_says_what_waits_and_for_which_worker() -> None:
    fleet = Fleet("a", "b")
    missed = sum(map(len, fleet.running["b"].values()))

    fleet.leave("b")
    fleet.settle()

    reason = fleet.core.last("assignment_synced").reason
    assert reason.endswith(f"by server:incremental: {5 - missed} to run, {missed} wait for http://b")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"topics": ["orders"]}, '"running" must say what the worker runs'),
        ({"running": {}}, '"topics" or "topic_regex" must say which registered topics are the connectors'),
        ({"running": {}, "topics": "orders"}, '"topics" must be a list of names'),
        ({"running": {"orders": [-2]}, "topics": ["orders"]}, "the tasks of 'orders' must be a list of numbers"),
        ({"running": {}, "topic_regex": "("}, "is no regular expression of RE2"),
        ({"running": {}, "topics": [], "scheduled_rebalance_max_delay_ms": -1}, "must be a number from 0 to 86400000"),
        ({"running": {}, "topics": ["t"], "version": 0}, "not a JSON object with a version"),
    ],
)
def test_a_worker_that_cannot_be_assigned_is_rejected(said: dict[str, Any], why: str) -> None:
    metadata = json.dumps({"version": 1, **said}).encode()

    reply = an_empty_shard().ask(a_join(new="m", protocols=((NAME, metadata),), protocol_type="worker"))

    assert reply.error is ErrorCode.INVALID_REQUEST
    assert why in reply.detail
