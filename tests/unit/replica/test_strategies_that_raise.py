"""A strategy of a plug-in that raises costs its own group an attempt, and no other group anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rota.core.replica.assigning import LINGER_MS, REFRESH_MS
from rota.core.types import Generation, TopicFacts, consumer, registry
from tests.unit.replica.assigning_stage import Replica


@pytest.fixture
def replica() -> Replica:
    return Replica()


class Strategy:
    """The functions of a plug-in: they raise where `raises_for` says so."""

    raises_for = ""

    def wants_topic(self, generation: Generation) -> Callable[[str], bool]:
        if self.raises_for == "one generation":
            self.raises_for = ""
            self._fail("")
        if self.raises_for == "generation":
            self._fail("")
        return self._fail if self.raises_for == "topic" else consumer.wants_topic(generation)

    def assign(self, generation: Generation, topics: Mapping[str, TopicFacts]) -> Mapping[str, bytes]:
        if self.raises_for == "assignment":
            self._fail("")
        assert consumer.CONSUMER.server is not None
        return consumer.CONSUMER.server.assign(generation, topics)

    def _fail(self, topic: str) -> Any:
        raise ZeroDivisionError(topic)


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> Strategy:
    return plugged_in(monkeypatch)


def plugged_in(monkeypatch: pytest.MonkeyPatch) -> Strategy:
    """The strategy of all groups of the test."""
    strategy, known = Strategy(), consumer.CONSUMER
    assert known.server is not None
    side = dataclasses.replace(known.server, wants_topic=strategy.wants_topic, assign=strategy.assign)
    monkeypatch.setitem(registry._TYPES, known.name, dataclasses.replace(known, server=side))
    return strategy


@pytest.mark.parametrize("raises_for", ["generation", "topic"])
def test_a_strategy_that_cannot_name_its_topics_fails_its_group(
    replica: Replica, strategy: Strategy, raises_for: str
) -> None:
    strategy.raises_for = raises_for
    replica.join()

    replica.assign(("t", 1))

    assert replica.owned.shard.groups["default", "g"].state == "PreparingRebalance"
    strategy.raises_for = ""
    replica.join("h")
    replica.assign(("t", 1))
    assert replica.shares("h") == [[0]]


def test_a_strategy_that_raises_for_one_group_assigns_another(replica: Replica, strategy: Strategy) -> None:
    """Both wait for one listing."""
    for group in "ghi":
        replica.join(group)
    replica.assign(("t", 1))
    strategy.raises_for = "one generation"

    replica.assign(("t", 1))

    assert replica.group("h").state == "PreparingRebalance"
    assert replica.shares("i") == [[0]]


@pytest.mark.parametrize("outcome", [None, {"m1": "text"}], ids=["no mapping", "no bytes"])
def test_an_outcome_that_is_no_assignment_is_an_error(replica: Replica, outcome: Any) -> None:
    replica.join()
    replica.list(("t", 1))
    (do,) = replica.jobs()
    side = dataclasses.replace(do.job.side, assign=lambda *_: outcome)

    with pytest.raises(TypeError):
        dataclasses.replace(do, job=dataclasses.replace(do.job, side=side)).assign()


def test_a_stable_group_is_assigned_again_once_topics_are_named(replica: Replica, strategy: Strategy) -> None:
    """Even if it wants none by then."""
    replica.join()
    replica.assign(("t", 2))
    strategy.raises_for = "generation"
    replica.later(REFRESH_MS)
    replica.assign(("t", 3))
    assert replica.shares() == [[0, 1]]

    strategy.raises_for = ""
    replica.later(REFRESH_MS)
    replica.list()

    assert [do.topics for do in replica.jobs()] == [{}]


def test_a_stable_group_is_assigned_after_a_failed_assignment(replica: Replica, strategy: Strategy) -> None:
    """Found by the simulator (seed 9500118): new partitions had no member until the topics changed once more."""
    replica.join()
    replica.assign(("t", 2))
    strategy.raises_for = "assignment"
    replica.grow()
    replica.later(LINGER_MS)
    replica.assign(("t", 3))
    assert replica.shares() == [[0, 1]]

    strategy.raises_for = ""
    replica.later(REFRESH_MS)
    replica.assign(("t", 3))

    assert replica.shares() == [[0, 1, 2]]
