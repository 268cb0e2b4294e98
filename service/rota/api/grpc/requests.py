"""The requests in one message of a session stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import methodcaller

from rota.api.grpc.submitted import CALL_KINDS
from rota.api.large import is_large
from rota.v1.coordinator_pb2 import SessionRequest
from rota.wire.batching import MAX_BATCH, places_in_batch, split_batch
from rota.wire.protobuf import parse
from rota.wire.shapes import invalid

_has_heartbeats = methodcaller("HasField", "heartbeat")
RULES = f"a message with more requests has at most {MAX_BATCH}, holds nothing else, and none of them more"


def requests_in(data: bytes) -> tuple[int, Iterator[tuple[SessionRequest, bytes]]]:
    """How many there are, and each of them, with its bytes where the message is large; otherwise these are empty.

    Raises `RejectedRequest` where the message breaks the rules, also on the way. The requests of a large one are parsed
    one after another: it waits for many turns of the event loop, and all of them parsed may be 40 times as large.
    """
    places = None
    if is_large(len(data)):
        try:
            places = places_in_batch(SessionRequest, data)
        except ValueError:
            raise invalid(RULES) from None
    if places is not None:
        return len(places), (_parsed(data[place]) for place in places)
    message: SessionRequest = parse(SessionRequest, data)
    requests = split_batch(message)
    if len(requests) > MAX_BATCH:
        raise invalid(RULES)
    if message.batch and (message.call or is_large(len(data)) or any(request.batch for request in requests)):
        raise invalid(RULES)
    return len(requests), zip(_heartbeats_first(requests), repeat(data if is_large(len(data)) else b""))


def _heartbeats_first(requests: Sequence[SessionRequest]) -> Sequence[SessionRequest]:
    """Heartbeats before calls of other groups: the calls of one message begin in many turns, which may take seconds.

    One that follows a call of the same group stays behind it: they may be of one member.
    """
    if not any(map(_has_heartbeats, requests)):
        return requests
    first, others, named = list[SessionRequest](), list[SessionRequest](), set[tuple[str, str]]()
    for request in requests:
        kind = request.WhichOneof("request")
        if kind == "heartbeat" and not any(
            (each.namespace, each.group_id) in named for each in request.heartbeat.groups
        ):
            first.append(request)
            continue
        others.append(request)
        if kind in CALL_KINDS:
            call = getattr(request, kind)
            named.add((call.namespace, call.group_id))
    return first + others


def _parsed(data: bytes) -> tuple[SessionRequest, bytes]:
    request = parse(SessionRequest, data)
    if request.batch:
        raise invalid(RULES)
    return request, data
