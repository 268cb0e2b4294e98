"""The short ways of reading joins and syncs accept what the shapes accept, and make the same of it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.wire.json_joins import read_plain_join, read_plain_sync
from rota.wire.requests import JOIN_GROUP, SYNC_GROUP

LIMITS = Limits(max_protocols=2, metadata_max_bytes=6, assignment_max_bytes=6, group_max_size=2)
TEXTS: list[Any] = ["", "m", "ü", "m" * 249, "m" * 250, "m" * 512, "m" * 513, "a\u202eb", "\x00", "\ud800", 7, True]
NUMBERS: list[Any] = [0, 1, -1, -2, 50_001, 2**31 - 1, 2**31, 2**53 - 1, 2**53, 86_400_001, True, 1.0, "1"]
OCTETS: list[Any] = ["", *(b64encode(bytes(size)).decode() for size in (1, 2, 3, 6, 7)), "AA", "A-==", "AA==\n", "ü", 7]
RANGE = {"name": "range", "metadata": "AAEC"}
SHARE = {"member_id": "m", "assignment": "AAEC"}
ODD: list[Any] = [{}, [], "range", 7, None]


def a_join(**changes: Any) -> dict[str, Any]:
    return {"protocol_type": "worker", "protocols": [RANGE], **changes}


def a_sync(**changes: Any) -> dict[str, Any]:
    return {"member_id": "m", "generation_id": 7, **changes}


def read_join(document: dict[str, Any]) -> Any:
    return read_plain_join(document, "ns", "g", "192.0.2.7", LIMITS)


def read_sync(document: dict[str, Any]) -> Any:
    return read_plain_sync(document, "ns", "g", LIMITS)


def join_of_shape(document: dict[str, Any]) -> Any:
    """What the shape makes of it; None where it rejects it."""
    try:
        return JOIN_GROUP.decode(document, LIMITS, namespace="ns", group_id="g", host="192.0.2.7")
    except RejectedRequest:
        return None


def sync_of_shape(document: dict[str, Any]) -> Any:
    try:
        return SYNC_GROUP.decode(document, LIMITS, namespace="ns", group_id="g")
    except RejectedRequest:
        return None


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, TEXTS) for name in ("member_id", "client_id", "protocol_type")),
        *((name, NUMBERS) for name in ("session_timeout_ms", "rebalance_timeout_ms", "wait_ms", "last_generation_id")),
        ("protocols", [[], [RANGE] * 2, [RANGE] * 3, {}, "range", [RANGE, {**RANGE, "x": 1}], [{"x": 1, "name": "r"}]]),
        ("protocols", [[RANGE, odd] for odd in ODD]),
        ("protocols", [[RANGE, {**RANGE, "name": text}] for text in TEXTS]),
        ("protocols", [[RANGE, {**RANGE, "metadata": octets}] for octets in OCTETS]),
    ],
)
def test_each_field_of_a_join_is_what_its_shape_makes_of_it(name: str, values: list[Any]) -> None:
    for value in values:
        document = a_join(**{name: value})

        assert read_join(document) == join_of_shape(document), document


@pytest.mark.parametrize("protocol_type", ["worker", "consumer", "leader"])
def test_absent_fields_of_a_join_have_the_defaults_of_its_shape(protocol_type: str) -> None:
    document = a_join(protocol_type=protocol_type)

    assert read_join(document) == join_of_shape(document) is not None


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("member_id", TEXTS),
        ("generation_id", NUMBERS),
        ("wait_ms", NUMBERS),
        ("assignments", [[], [SHARE] * 2, [SHARE] * 3, {}, "m", [{**SHARE, "x": 1}], [{"x": 1, "member_id": "m"}]]),
        ("assignments", [[SHARE, odd] for odd in ODD]),
        ("assignments", [[SHARE, {**SHARE, "member_id": text}] for text in TEXTS]),
        ("assignments", [[SHARE, {**SHARE, "assignment": octets}] for octets in OCTETS]),
    ],
)
def test_each_field_of_a_sync_is_what_its_shape_makes_of_it(name: str, values: list[Any]) -> None:
    for value in values:
        document = a_sync(**{name: value})

        assert read_sync(document) == sync_of_shape(document), document


def test_absent_fields_of_a_sync_have_the_defaults_of_its_shape() -> None:
    assert read_sync(a_sync()) == sync_of_shape(a_sync()) is not None


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"protocol_type": "worker"},
        {"protocols": [RANGE]},
        a_join(protocols=[{"name": "range"}]),
        a_join(protocols=[{**RANGE, "metadata": None}]),
        *(a_join(**{name: None}) for name in ("member_id", "client_id", "protocols", "wait_ms", "last_generation_id")),
        *(a_join(**{name: "x"}) for name in ("group_instance_id", "reason", "host", "subject", "x")),
    ],
)
def test_a_join_that_is_not_plain_is_left_to_the_shape(document: dict[str, Any]) -> None:
    assert read_join(document) is None


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"member_id": "m"},
        {"generation_id": 7},
        *(a_sync(**{name: None}) for name in ("member_id", "generation_id", "assignments", "wait_ms")),
        *(a_sync(**{name: "x"}) for name in ("group_instance_id", "protocol_type", "protocol_name", "error", "x")),
    ],
)
def test_a_sync_that_is_not_plain_is_left_to_the_shape(document: dict[str, Any]) -> None:
    assert read_sync(document) is None
