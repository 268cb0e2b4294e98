"""Every scenario of the classic protocol, as Kafka's own coordinator played it."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.classic_runner import ClassicRunner

HERE = Path(__file__).parent
DATA = Path(os.environ.get("ROTA_CONFORMANCE_DIR", HERE / "data"))


def departures() -> dict[str, str]:
    """Ids of rows that contradict the protocol page, each with its reason."""
    lines = (HERE / "departures.txt").read_text().splitlines()
    rows = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return dict(rows)


def scenarios() -> list[Any]:
    document = json.loads((DATA / "classic.json").read_text())
    rows = document["scenarios"]
    assert rows, "no scenario was found: nothing would be tested"
    return [pytest.param(row, document["_doc"]["defaults"], id=row["id"]) for row in rows]


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


def test_every_departure_names_a_scenario_of_the_copy_in_the_repo() -> None:
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
