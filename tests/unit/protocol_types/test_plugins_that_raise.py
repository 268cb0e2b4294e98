"""The log names a plug-in's function that raises, and the core catches its exception as before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from rota.core.types import (
    MalformedMetadata,
    ProtocolType,
    ServerSide,
    Succession,
    registry,
    server_side,
    subscribed_topics,
)
from rota.core.types.plugin import Units
from rota.server.plugins import FAILURE_EVERY_S, PluginFailures


def fail(*_: object) -> Any:
    raise KeyError("luck")


def refuse(*_: object) -> Any:
    raise MalformedMetadata("no luck")


SUCCESSION = Succession(fail, fail, fail, fail, fail)
SIDE = ServerSide(assigns=fail, assign=fail, takes_away=fail, succession=SUCCESSION)
GAMBLE = ProtocolType("gamble", refuse, fail, fail, SIDE, units=Units(fail, fail))
POINT = EntryPoint("gamble", f"{__name__}:GAMBLE", "rota.protocol_types")


@pytest.fixture(autouse=True)
def registered_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_TYPES", {})
    monkeypatch.setattr(registry, "_REGISTERED", {})


def reported_by(plug_in: ProtocolType) -> list[str]:
    reports: list[str] = []
    registry.register(plug_in, lambda function, error: reports.append(f"{function} {error!r}"))
    return reports


def test_a_function_is_named_whatever_part_it_is_of() -> None:
    reports = reported_by(GAMBLE)
    known = registry._TYPES["gamble"]
    assert known.server is not None
    assert known.server.succession is not None
    assert known.units is not None

    calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
        (known.read_assignment, (b"",)),
        (known.server.takes_away, ({}, {})),
        (known.server.succession.elect, ((), "")),
        (known.units.of, (b"",)),
    ]
    for function, arguments in calls:
        with pytest.raises(KeyError, match="luck"):
            function(*arguments)

    names = ["read_assignment", "takes_away", "elect", "of"]
    assert reports == [f"gamble.{name} KeyError('luck')" for name in names]


def test_metadata_that_a_plug_in_rejects_is_not_its_failure() -> None:
    reports = reported_by(GAMBLE)

    with pytest.raises(MalformedMetadata):
        registry._TYPES["gamble"].read_metadata(b"")

    assert reports == []


def test_installed_ones_are_registered_with_a_report() -> None:
    reports: list[str] = []

    for _ in range(2):
        names = registry.register_entry_points([POINT], lambda function, _: reports.append(function))
        assert names == ["gamble"]

    assert server_side("gamble", "any") is None
    assert subscribed_topics("gamble", b"") is None
    assert reports == ["gamble.assigns", "gamble.topics_of"]


def test_a_function_that_keeps_failing_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    failures = PluginFailures(lambda: now_s)

    def lines() -> list[tuple[str, int]]:
        return [(each.function, each.times) for each in caplog.records]  # type: ignore[attr-defined]

    with caplog.at_level(logging.WARNING):
        for function in ("a.check", "a.check", "a.assign", "a.check"):
            failures.report(function, KeyError("luck"))
        assert lines() == [("a.check", 1), ("a.assign", 1)]

        now_s = FAILURE_EVERY_S
        failures.report("a.check", KeyError("luck"))

    assert lines()[2:] == [("a.check", 3)]
    assert "a plug-in's function raised: KeyError('luck')" in caplog.text
