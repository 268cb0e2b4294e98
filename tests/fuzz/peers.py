"""The port for other replicas: requests that are nearly what a replica sends, with the secret and without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from random import Random
from threading import Event
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import grpc
import msgspec

from rota.protocol.calls import REPLY_OF
from rota.protocol.messages import Heartbeat
from rota.server.peer.messages import (
    EXCHANGE,
    Answered,
    Cancelled,
    Holds,
    MoreTaken,
    Released,
    TopicsChanged,
    Watch,
    pack,
    pack_asked,
    unpack,
)
from rota.server.peer.secret import shown
from tests.fuzz.campaign import Broken, Target
from tests.fuzz.mutations import as_messages, mutated, mutated_document
from tests.fuzz.served import HOST, SECRET, Served

CALL_S = 30.0
LAST = 2**40
"""The number of a request that each stream ends with."""
OUR_FAULT = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)
_TEXTS = ("default", "g1", "g2", "i1", "", "range", "x")
_NUMBERS = (-1, 0, 1, 2, 10_000)


def a_value(random: Random, kind: Any) -> Any:
    """A value of a message's field."""
    if get_origin(kind) in (Union, UnionType):
        inner = random.choice([each for each in get_args(kind) if each is not NoneType])
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
        knows = random.random() < 0.9
        sent = _sent(random)
        code = self._code(sent, shown([SECRET]) if knows else random.choice(((), shown(["wrong"]), shown([""]))))
        if code in OUR_FAULT:
            raise Broken(f"{code} to {sent[:2_000]!r}")
        if not knows and code is not grpc.StatusCode.UNAUTHENTICATED:
            raise Broken(f"{code} without the secret")

    def _code(self, sent: bytes, metadata: Any) -> grpc.StatusCode:
        channel: Any = self._channel
        ended = Event()
        stream = channel.stream_stream(EXCHANGE)(_until(ended, sent), metadata=metadata, timeout=CALL_S)
        try:
            for data in stream:
                for answer in unpack(list[Answered], data):
                    if answer.failure.startswith("an internal error"):
                        raise Broken(f"{answer.failure} to {sent[:2_000]!r}")
                    if answer.number == LAST:
                        return grpc.StatusCode.OK
        except grpc.RpcError as error:
            return error.code()
        finally:
            ended.set()
            stream.cancel()
        raise Broken(f"the stream ended after {sent[:2_000]!r}")


def _until(ended: Event, sent: bytes) -> Iterator[bytes]:
    yield sent
    yield b"\x91" + pack_asked(LAST, Released())
    ended.wait()


def _sent(random: Random) -> bytes:
    document = [_request(random, number) for number in range(random.choice((0, 1, 1, 1, 5)))]
    data = pack(document)
    if random.random() < 0.6:
        data = as_messages(mutated_document(random, msgspec.msgpack.decode(data)))
    return mutated(random, data) if random.random() < 0.3 else data


def _request(random: Random, number: int) -> tuple[object, ...]:
    match random.randrange(8):
        case 0:
            return number, "Heartbeat", a_message(random, Heartbeat), "00-trace"
        case 1:
            return number, "Holds", Holds("r", 0, 1)
        case 2:
            return number, "TopicsChanged", TopicsChanged(["default", "n1"])
        case 3:
            return number, "Watch", Watch("default", "g1", 0)
        case 4:
            about = random.choice((Cancelled(), MoreTaken()))
            return random.choice((number - 1, 77)), type(about).__name__, about
        case _:
            kind = random.choice([kind for pair in REPLY_OF.items() for kind in pair])
            return number, kind.__name__, a_message(random, kind)


@contextmanager
def opened() -> Iterator[PeerFuzzer]:
    with Served() as served, grpc.insecure_channel(f"{HOST}:{served.peer_port}") as channel:
        yield PeerFuzzer(served, channel)


PEERS = Target("peers", "the peer port: requests, notifications and watches, with and without the secret", opened)
