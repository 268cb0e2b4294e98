"""Every scenario of the classic protocol, as Kafka's own coordinator played it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.classic_runner import ClassicRunner
from tests.conformance.sets import documents

HERE = Path(__file__).parent
DEFAULTS = {"protocol_type": "consumer", "session_ms": 10_000, "rebalance_ms": 30_000}


def departures() -> dict[str, str]:
    """Ids of rows that contradict the protocol page, each with its reason."""
    lines = (HERE / "departures.txt").read_text().splitlines()
    rows = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return dict(rows)


def scenarios() -> list[Any]:
    return [
        pytest.param(row, {**DEFAULTS, **document.get("_doc", {}).get("defaults", {})}, id=row["id"])
        for document in documents("scenarios")
        for row in document["scenarios"]
    ]


@pytest.mark.parametrize(("scenario", "defaults"), scenarios())
def test_scenario(scenario: dict[str, Any], defaults: dict[str, Any]) -> None:
    outcome = ClassicRunner(scenario, defaults).run()
    differences = [
        *_different_states(scenario["states"], outcome.states),
        *_different_events(scenario["events"], outcome.events),
    ]
    if scenario["id"] in departures():
        assert differences, f"{scenario['id']} is listed as a departure but plays as in Kafka: take it off the list"
    else:
        assert not differences, "\n".join([scenario["title"], *differences])


def test_every_departure_names_a_scenario_of_the_copy() -> None:
    known = {row["id"] for row in json.loads((HERE / "data" / "classic.json").read_text())["scenarios"]}

    assert set(departures()) <= known


def _different_states(expected: list[str], actual: list[str]) -> list[str]:
    return [
        f"after step {step}: expected {want!r}, got {got!r}"
        for step, (want, got) in enumerate(zip(expected, actual, strict=True))
        if want != got and "any" not in want
    ]


def _different_events(expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> list[str]:
    """Answers of one step come in any order (Kafka's is that of a hash map)."""
    want = Counter(_canonical(event) for event in expected)
    got = Counter(_canonical(event) for event in actual if not _superseded(event, expected))
    return [f"missing: {event}" for event in (want - got)] + [f"unexpected: {event}" for event in (got - want)]


def _superseded(event: dict[str, Any], expected: list[dict[str, Any]]) -> bool:
    """Kafka never answers a parked call whose member called again; here it gets a retriable error (§9)."""
    answered = {row["step"] for row in expected}
    return event["error"] == "REBALANCE_IN_PROGRESS" and event["step"] not in answered


def _canonical(event: dict[str, Any]) -> str:
    fields = {key: value for key, value in event.items() if value not in (None, "", [])}
    return json.dumps(fields, sort_keys=True)


A_JOIN = {"op": "join", "as": "A", "protocols": [["range", "m"]]}
A_COMMIT = {"op": "commit", "gen": -1, "offsets": [["t", 0, 5]]}


def test_the_retention_of_each_commit_counts_as_in_kafka() -> None:
    """OffsetCommit version 2: RetentionTimeMs of the request, -1 for the server's; here also one of an offset's own."""
    own = {**A_COMMIT, "offsets": [{"topic": "t", "partition": 1, "offset": 5, "retention": 9_000}]}
    left = {**A_COMMIT, "offsets": [["t", 2, 5]], "retention": -1}
    sweep = [{"op": "sweep"}, {"op": "fetch"}]
    steps = [
        {**A_COMMIT, "retention": 5_000}, {**own, "retention": 5_000}, left,
        {"op": "advance", "ms": 4_999}, *sweep, {"op": "advance", "ms": 1}, *sweep,
        {"op": "advance", "ms": 4_000}, *sweep, {"op": "advance", "ms": 51_000}, *sweep,
    ]  # fmt: skip

    outcome = ClassicRunner({"steps": steps, "config": {"retention_min": 1}}, DEFAULTS).run()

    found = [event["offsets"] for event in outcome.events if event["kind"] == "fetch"]
    assert found == [["t-0=5/", "t-1=5/", "t-2=5/"], ["t-1=5/", "t-2=5/"], ["t-2=5/"], []]


def test_a_client_is_its_id_and_its_host() -> None:
    clients = [{"id": "app", "host": "10.0.0.7"}, "app"]
    steps = [{**A_JOIN, "as": f"M{number}", "instance": f"i{number}", "client": c} for number, c in enumerate(clients)]
    runner = ClassicRunner({"steps": [*steps, {"op": "advance", "ms": 3_000}]}, DEFAULTS)
    runner.run()
    (group,) = runner.shard.groups.values()
    assert [(each.image.client_id, each.image.host) for each in group.members.values()] == [
        ("app", "10.0.0.7"),
        ("app", ""),
    ]
