"""What DescribeGroup shows of members' bytes: as their type reads them, and never at the cost of the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from rota.cli.groups import _held
from rota.core.group import describe
from rota.core.group.describe import describe_group
from rota.core.types import registry
from rota.core.types.plugin import ProtocolType
from rota.core.types.registry import MAX_DECODED_BYTES, decoded, readable_assignment, readable_metadata
from rota.protocol.messages import DescribedMember, DescribeGroup
from tests.unit.group.driver import GROUP_ID, NAMESPACE, a_stable_group

DESCRIBE = DescribeGroup(NAMESPACE, GROUP_ID)


def refusing(_data: bytes) -> Mapping[str, Any]:
    raise RuntimeError("a bug of another package")


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"in": value}
    return value


ODD: dict[str, Callable[[bytes], Any]] = {
    "an exception": refusing,
    "no object": lambda _: ["a list"],
    "nothing": lambda _: None,
    "bytes": lambda data: {"raw": data},
    "no JSON number": lambda _: {"weight": math.nan},
    "a lone surrogate": lambda _: {"name": "\ud800"},
    "deep nesting": lambda _: nested(100_000),
    "too much": lambda _: {"text": "x" * MAX_DECODED_BYTES},
    "a key that is none": lambda _: {(1, 2): 3},
}


@pytest.fixture
def odd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kind = ProtocolType("odd", request.param, request.param)
    monkeypatch.setitem(registry._TYPES, kind.name, kind)
    return kind.name


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD, indirect=True)
def test_what_a_decoder_cannot_read_is_not_shown(odd: str) -> None:
    assert decoded(readable_metadata(odd, b"m")) is None
    assert decoded(readable_assignment(odd, b"a")) is None


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD, indirect=True)
def test_a_group_is_described_whatever_its_decoder_does(odd: str) -> None:
    group = a_stable_group(members=2).group
    group.protocol_type = odd

    reply = describe_group(group, 0)

    assert [(each.metadata_decoded, each.assignment_decoded) for each in reply.members] == [(None, None)] * 2
    assert all(each.assignment for each in reply.members)


@pytest.mark.parametrize("odd", [lambda data: {"bytes": len(data)}], indirect=True, ids=["their size"])
def test_of_a_large_group_only_the_first_members_are_decoded(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "MAX_DECODED_MEMBERS", 2)
    group = a_stable_group(members=3).group
    group.protocol_type = odd

    shown = [each.assignment_decoded for each in describe_group(group, 0).members]

    assert shown == [{"bytes": 2}, {"bytes": 2}, None]


def test_mappings_and_tuples_are_shown_as_json() -> None:
    assert decoded(MappingProxyType({"a": MappingProxyType({"b": (1, 2)})})) == {"a": {"b": [1, 2]}}


def a_described(assignment: bytes, reported: dict[str, Any] | None) -> DescribedMember:
    return DescribedMember("m", None, "c", "h", b"", assignment, 1, 1, None, True, False, None, reported)


@pytest.mark.parametrize(
    ("reported", "line"),
    [
        ({"topics": {"words": [3], "orders": [1, 0], "none": []}}, "orders/0,1 words/3"),
        ({"topics": {}}, "-"),
        ({"run": {"sink": [-1, 0]}, "revoke": {"source": [2]}, "delay_ms": 0}, 'sink/-1,0 revoke={"source":[2]}'),
        ({"leader_id": "m-1", "token": 3, "endpoint": ""}, "-"),
        ({"arcs": [[0, 43690]]}, "arcs=[[0,43690]]"),
        ({"note": "\x1b[31m"}, "note=\\x1b[31m"),
        (None, "a share of 3 bytes"),
    ],
)
def test_the_command_line_shows_a_share_as_its_type_reads_it(reported: dict[str, Any] | None, line: str) -> None:
    assert _held(a_described(b"abc", reported)) == line
