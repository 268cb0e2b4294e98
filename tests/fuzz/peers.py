"""The port for other replicas: envelopes that are nearly what a replica sends, with the secret and without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from random import Random
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import grpc
import msgspec

from rota.api.peer.methods import CALL, HEARTBEATS, HELD, RELEASED, TOPICS_CHANGED, WATCH, Claims, Watch
from rota.api.peer.secret import shown
from rota.protocol.calls import REPLY_OF
from rota.protocol.messages import Heartbeat
from rota.wire.envelopes import pack, pack_heartbeats
from tests.fuzz.campaign import Broken, Target
from tests.fuzz.mutations import as_messages, mutated, mutated_document
from tests.fuzz.served import HOST, SECRET, Served

CALL_S = 30.0
WATCH_S = 0.1
OUR_FAULT = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)
_METHODS = (CALL, CALL, CALL, HEARTBEATS, HELD, RELEASED, TOPICS_CHANGED, WATCH)
_TEXTS = ("default", "g1", "g2", "i1", "", "range", "x")
_NUMBERS = (-1, 0, 1, 2, 10_000)


def a_value(random: Random, kind: Any) -> Any:
    """A value of a message's field."""
    if get_origin(kind) in (Union, UnionType):
        (inner,) = (each for each in get_args(kind) if each is not NoneType)
        return None if random.random() < 0.5 else a_value(random, inner)
    if get_origin(kind) is tuple:
        arguments = get_args(kind)
        if arguments[-1] is Ellipsis:
            return tuple(a_value(random, arguments[0]) for _ in range(random.choice((0, 1, 3))))
        return tuple(a_value(random, each) for each in arguments)
    if get_origin(kind) is dict or kind is dict:
        return {}
    if hasattr(kind, "__struct_fields__"):
        return a_message(random, kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return random.choice(list(kind))
    return {str: random.choice(_TEXTS), bytes: b"bytes", int: random.choice(_NUMBERS), bool: True, float: 0.5}[kind]


def a_message(random: Random, kind: Any) -> Any:
    """A message with any values of the right types; one that waits does not wait."""
    hints = get_type_hints(kind)
    values = {name: a_value(random, hints[name]) for name in kind.__struct_fields__}
    return kind(**{**values, "wait_ms": 0} if "wait_ms" in values else values)


class PeerFuzzer:
    """Calls the port as a replica of another release, or as a stranger."""

    def __init__(self, served: Served, channel: grpc.Channel) -> None:
        self.cpu_s = served.cpu_s
        self._channel = channel

    def play(self, random: Random) -> None:
        method, knows = random.choice(_METHODS), random.random() < 0.9
        data = _sent(random, method)
        metadata = shown([SECRET]) if knows else random.choice(((), shown(["wrong"]), shown([""])))
        code = self._code(method, data, metadata, WATCH_S if knows and method == WATCH else CALL_S)
        if code in OUR_FAULT:
            raise Broken(f"{code} to {method} {data[:2_000]!r}")
        if not knows and code is not grpc.StatusCode.UNAUTHENTICATED:
            raise Broken(f"{code} without the secret to {method}")

    def _code(self, method: str, data: bytes, metadata: Any, timeout_s: float) -> grpc.StatusCode:
        channel: Any = self._channel
        try:
            if method == WATCH:
                for _ in channel.unary_stream(WATCH)(data, metadata=metadata, timeout=timeout_s):
                    pass
            else:
                channel.unary_unary(method)(data, metadata=metadata, timeout=timeout_s)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def _sent(random: Random, method: str) -> bytes:
    data = _well_formed(random, method)
    if random.random() < 0.6:
        data = as_messages(mutated_document(random, msgspec.msgpack.decode(data)))
    return mutated(random, data) if random.random() < 0.3 else data


def _well_formed(random: Random, method: str) -> bytes:
    match method:
        case str() if method == CALL:
            kind = random.choice([kind for pair in REPLY_OF.items() for kind in pair])
            return pack([kind.__name__, a_message(random, kind)])
        case str() if method == HEARTBEATS:
            return pack_heartbeats([a_message(random, Heartbeat) for _ in range(random.choice((0, 1, 5)))])
        case str() if method == HELD:
            return pack(Claims("r", {0: 1, 3: 2}))
        case str() if method == TOPICS_CHANGED:
            return pack(["default", "n1"])
        case str() if method == WATCH:
            return pack(Watch("default", "g1", 0))
        case _:
            return pack(None)


@contextmanager
def opened() -> Iterator[PeerFuzzer]:
    with Served() as served, grpc.insecure_channel(f"{HOST}:{served.peer_port}") as channel:
        yield PeerFuzzer(served, channel)


PEERS = Target("peers", "the peer port: envelopes, heartbeats, news and watches, with and without the secret", opened)
