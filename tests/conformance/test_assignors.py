"""Every case of `assignors.json`: what Kafka's assignors gave for the same input, and what must hold in any case.

Listed cases: `expected` and the plain properties are about the first round, `expected_final` and `final:…` about what
the group comes to when every member rejoins with its last assignment. Generated cases are checked in each of their
rounds; those of `cooperative-sticky` after it converged, except for what must hold in every single round.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rota.core.assignors import MemberSubscription, PartitionRacks, Shares, TopicPartition, assign
from tests.conformance.assignor_generator import partitions, scaled_down, worlds
from tests.conformance.assignor_properties import Outcome, holds
from tests.conformance.sets import documents

HERE = Path(__file__).parent
QUICK_PARTITIONS, THOROUGH_PARTITIONS = 25_000, 100_000
"""Generated cases above this are slow; the default run has them scaled down."""
IN_EVERY_ROUND = frozenset({"valid", "two-phase"})
FIELDS = frozenset(
    {
        *("assignor", "name", "partitions_per_topic", "members", "partition_racks", "generator", "properties"),
        *("expected", "expected_final", "rounds_to_converge", "note", "optional"),
        *("kafka_result", "kafka_result_final", "kafka_time_limit_s"),
    }
)
MEMBER_FIELDS = frozenset({"topics", "owned", "generation", "instance", "rack"})

Case = dict[str, Any]


def departures() -> frozenset[str]:
    """Names of cases (they have a slash, ids of classic scenarios have none) that we play differently on purpose."""
    lines = (HERE / "departures.txt").read_text().splitlines()
    return frozenset(line.split()[0] for line in lines if line and not line.startswith("#") and "/" in line.split()[0])


def cases() -> list[Case]:
    return [case for document in documents("cases") for case in document["cases"]]


def listed() -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in cases() if "generator" not in case]


def generated() -> Iterator[Any]:
    for case in cases():
        if "generator" not in case:
            continue
        count = partitions(case["generator"])
        if count <= QUICK_PARTITIONS:
            yield pytest.param(case, id=case["name"])
        else:
            small = {**case, "generator": scaled_down(case["generator"], QUICK_PARTITIONS)}
            yield pytest.param(small, id=f"{case['name']}-scaled-down")
            mark = pytest.mark.thorough if count <= THOROUGH_PARTITIONS else pytest.mark.slow
            yield pytest.param(case, id=case["name"], marks=mark)


@pytest.mark.parametrize("case", listed())
def test_listed_case(case: Case) -> None:
    differences = list(_differences(case))

    if case["name"] in departures():
        assert differences, f"{case['name']} is listed as a departure but gives what Kafka gives: take it off the list"
    else:
        assert not differences, "\n".join(differences)


@pytest.mark.parametrize("case", list(generated()))
def test_generated_case(case: Case) -> None:
    _refuse_unknown(case, FIELDS)
    started = time.perf_counter()
    failures = [
        f"round {number}: {name}"
        for outcomes in _play(case)
        for number, (rounds, settled) in enumerate(outcomes)
        for name in case["properties"]
        for outcome in (rounds if name in IN_EVERY_ROUND else [settled])
        if not holds(name.removeprefix("final:"), outcome)
    ]

    assert not failures, f"{case['name']}: {failures}"
    assert time.perf_counter() - started < case.get("kafka_time_limit_s", 60)


def _play(case: Case) -> Iterator[list[tuple[list[Outcome], Outcome]]]:
    """Of each repetition its rounds: the outcomes on the way to where it settles, and how that came of the input."""
    for world in worlds(case["generator"], seed=case["name"]):
        shares: Shares = {}
        outcomes = []
        for this_round in case["generator"]["rounds"]:
            members = world.members(this_round, shares)
            counts, racks = world.partitions_per_topic, world.partition_racks
            steps = _converge(case["assignor"], counts, members, racks)
            shares = steps[-1].shares
            outcomes.append((steps, Outcome(counts, members, shares)))
        yield outcomes


def _differences(case: Case) -> Iterator[str]:
    _refuse_unknown(case, FIELDS)
    members = _members(case["members"])
    counts = case["partitions_per_topic"]
    steps = _converge(case["assignor"], counts, members, case.get("partition_racks"))
    first, final = steps[0].shares, steps[-1].shares
    if "expected" in case:
        yield from _compare("expected", case["expected"], first)
    if "expected_final" in case:
        yield from _compare("expected_final", case["expected_final"], final)
    for name in case.get("properties", ()):
        relevant = steps if name in IN_EVERY_ROUND else [steps[0]]
        if name.startswith("final:"):
            relevant = [Outcome(counts, members, final)]
        if not all(holds(name.removeprefix("final:"), outcome) for outcome in relevant):
            yield f"{name} does not hold: {final}"


def _converge(
    name: str,
    counts: Mapping[str, int],
    members: Sequence[MemberSubscription],
    racks: PartitionRacks | None,
) -> list[Outcome]:
    """The rounds until the members receive what they received before; a single one if not cooperative."""
    steps = [Outcome(counts, members, assign(name, counts, members, racks))]
    generation = max((member.generation or 0 for member in members), default=0)
    while name == "cooperative-sticky":
        generation += 1
        shares = steps[-1].shares
        again = [
            replace(member, owned_partitions=shares[member.member_id], generation=generation) for member in members
        ]
        outcome = Outcome(counts, again, assign(name, counts, again, racks))
        if outcome.shares == shares:
            break
        steps.append(outcome)
        assert len(steps) < 20, "the group does not come to rest"
    return steps


def _members(rows: Mapping[str, Mapping[str, Any]]) -> list[MemberSubscription]:
    for row in rows.values():
        _refuse_unknown(row, MEMBER_FIELDS)
    return [
        MemberSubscription(
            member_id,
            group_instance_id=row.get("instance"),
            topics=row["topics"],
            owned_partitions=[TopicPartition(*partition) for partition in row["owned"]],
            generation=row["generation"],
            rack=row.get("rack"),
        )
        for member_id, row in rows.items()
    ]


def _compare(what: str, expected: Mapping[str, Iterable[Sequence[Any]]], shares: Shares) -> Iterator[str]:
    """Per member as sets."""
    for member_id in sorted(expected.keys() | shares.keys()):
        want = {TopicPartition(*partition) for partition in expected.get(member_id, ())}
        got = shares.get(member_id, [])
        if want != set(got) or len(got) != len(set(got)):
            yield f"{what}: {member_id} should have {sorted(want)}, has {got}"


def _refuse_unknown(row: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = row.keys() - known
    assert not unknown, f"the format has fields that this runner does not know: {sorted(unknown)}"


SHARES = {
    "a": [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)],
    "b": [TopicPartition("t", 2)],
    "c": [TopicPartition("u", 1)],
}
SUBSCRIBED = [
    MemberSubscription("a", topics=["t", "u"]),
    MemberSubscription("b", topics=["t"]),
    MemberSubscription("c", topics=["u"]),
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("per-topic difference <= 1", True),
        ("per-topic difference<=0", False),
        ("per-topic-difference <= 0", False),
        ("difference <= 2", True),
        ("difference<=1", False),
        ("moved <= 0", True),
        ("sticky >= 1", False),
        ("count:a=3", True),
    ],
)
def test_a_property_is_distinguished_from_its_opposite(name: str, expected: bool) -> None:
    assert holds(name, Outcome({"t": 3, "u": 2}, SUBSCRIBED, SHARES)) is expected
