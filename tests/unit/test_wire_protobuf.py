"""`Twin.fill` refuses values of a wrong type, also empty ones; all others come back as they were."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rota.protocol.limits import Limits
from rota.protocol.messages import JoinGroup, Protocol
from rota.protocol.wire.rpcs import RPCS

JOIN = RPCS[JoinGroup]
REQUEST = JoinGroup("n", "g", "worker", (Protocol("range", b""),), session_timeout_ms=1_000, rebalance_timeout_ms=0)


@pytest.mark.parametrize("field", ["member_id", "group_instance_id", "client_id", "reason", "protocols", "wait_ms"])
@pytest.mark.parametrize("wrong", [object(), 1.5])
def test_a_value_of_another_kind_is_refused(field: str, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        JOIN.write_request(replace(REQUEST, **{field: wrong}))


@pytest.mark.parametrize(
    ("field", "wrong"), [("member_id", 0), ("reason", ()), ("client_id", False), ("protocols", 0), ("wait_ms", "")]
)
def test_an_empty_value_of_another_kind_is_refused(field: str, wrong: Any) -> None:
    with pytest.raises(TypeError):
        JOIN.write_request(replace(REQUEST, **{field: wrong}))


@pytest.mark.parametrize("instance", [None, "i"])
def test_what_is_empty_and_what_is_absent_comes_back(instance: str | None) -> None:
    request = replace(REQUEST, group_instance_id=instance, wait_ms=0, last_generation_id=0)

    assert JOIN.read_request(JOIN.write_request(request), Limits(), host="") == request
