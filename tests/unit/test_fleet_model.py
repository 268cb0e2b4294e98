"""The model of a fleet: what grows with its members, and what ends first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.fleet_model import MEASURED, Fleet, costs_of, need, table


def test_cores_are_heartbeats_times_their_cost() -> None:
    fleet = Fleet(30_000, restarts_a_day=0)

    found = need(fleet, replace(MEASURED, heartbeat_ms={"HTTP": 20.0}, idle_cores=0.0))

    assert found.heartbeats == 10_000
    assert found.cores == pytest.approx(0.2)
    assert found.replicas == 3


@pytest.mark.parametrize(
    ("fleet", "first"),
    [
        (Fleet(10**6, "HTTP, 50 a request", commit_s=10), "commits of Postgres"),
        (Fleet(10**7, "streams, shared"), "the core of Redis"),
        (Fleet(10**6, "streams, one each"), "connections of Postgres"),
    ],
)
def test_the_scarcest_thing_is_named(fleet: Fleet, first: str) -> None:
    assert need(fleet).first == first


def test_the_table_has_a_line_for_each_size_and_transport() -> None:
    lines = table(MEASURED, sizes=(10_000, 100_000)).splitlines()

    assert len(lines) == 2 + 2 * (len(MEASURED.heartbeat_ms) + 1)


def test_costs_of_a_race_replace_the_kept_ones(tmp_path: Path) -> None:
    name = "keep-alives one by one, 64 connections: CPU of 1,000"
    race = tmp_path / "race.json"
    race.write_text(json.dumps({"quantities": [{"name": name, "samples": {"Rota, HTTP": [12.0, 10.0, 11.0]}}]}))

    found = costs_of(race).heartbeat_ms

    assert found["HTTP"] == 11.0
    assert found["streams, shared"] == MEASURED.heartbeat_ms["streams, shared"]


def test_the_sizing_page_has_the_table_of_the_model() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "sizing.md"

    assert table(MEASURED) in page.read_text(), "run python -m bench.fleet_model, and put its table there"
