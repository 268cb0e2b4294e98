"""The table of calls has one row for each request, and each way once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rota.protocol.calls import CALLS, Action
from rota.protocol.messages import ForgetTopic, HeartbeatMany, Request
from rota.protocol.wire.rpcs import RPCS
from rota.v1 import admin_pb2, coordinator_pb2

SERVED = [call for call in CALLS.values() if call.path]
BY_HAND = {"HeartbeatMany", "FindCoordinator", "RemoveMembers", "Session", "WatchGroup"}
"""The rpcs that carry no single request of the table."""


def kinds_of(kind: type[Request]) -> Iterator[type[Request]]:
    """The classes of messages below this one."""
    below = [each for each in kind.__subclasses__() if each.__module__.startswith("rota.protocol.")]
    if not below:
        yield kind
    for each in below:
        yield from kinds_of(each)


def test_every_request_has_exactly_one_row() -> None:
    assert Counter(kinds_of(Request)) == Counter(call.request for call in CALLS.values())


def test_every_way_and_every_name_belongs_to_one_call() -> None:
    assert {call.request for call in CALLS.values()} - {call.request for call in SERVED} == {HeartbeatMany, ForgetTopic}
    for distinct in ({(call.method, call.path) for call in SERVED}, {call.operation for call in SERVED}):
        assert len(distinct) == len(SERVED)
    assert all(call.summary for call in SERVED)


def test_every_rpc_of_the_services_is_one_of_a_row_or_written_by_hand() -> None:
    services = [module.DESCRIPTOR.services_by_name for module in (coordinator_pb2, admin_pb2)]
    names = Counter(method.name for by_name in services for each in by_name.values() for method in each.methods)

    assert names == Counter([*(rpc.name for rpc in RPCS.values()), *BY_HAND])


def test_fields_that_travel_in_the_path_are_fields_of_the_request() -> None:
    for call in SERVED:
        assert set(call.path_names) <= set(call.request.__struct_fields__)


def test_an_administrators_call_needs_nothing_else() -> None:
    needs = {call.request: {need.action for need in call.needs} for call in CALLS.values()}

    assert {kind.__name__ for kind, actions in needs.items() if actions == {Action.ADMINISTER}} == {
        *("DeleteGroup", "DeleteOffsets", "DeleteTopic", "ForgetTopic", "FreezeGroup", "PutTopic"),
        *("QuarantineGroup", "RebalanceGroup"),
    }
