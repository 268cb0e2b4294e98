"""Messages between replicas: numbered requests one way and numbered answers the other, in MessagePack.

A message of the stream is a list of all that one end has to send in a turn of its event loop. Replicas of one release
talk to each other, so the form follows the structs. A field that a peer of another release does not know is dropped,
and one that it does not send keeps its default. What comes in is checked by type as it is decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from rota.core.replica.forwarding import as_moved
from rota.core.replica.ports import Answer, JournalEvent
from rota.protocol.calls import REPLY_OF
from rota.protocol.messages import Reply, Request
from rota.protocol.values import Int64

SERVICE = "rota.internal.v1.Peer"
EXCHANGE = f"/{SERVICE}/Exchange"
"""The only rpc: a stream of requests, and of their answers. The replica that asks opens it."""
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A request of 8 MiB, in which protobuf spares the names of fields, and room to spare."""
MAX_BATCH_BYTES = 128 * 1024
"""A message of several requests is not larger: some hundred heartbeats, which take an event loop some 5 ms."""
MAX_BATCH = 1_000
MOST_UNANSWERED = 50_000
"""Requests of one stream without an answer: members that wait for a rebalance, and watches, are most of them."""
MOST_UNSENT_BYTES = 32 * 1024 * 1024
"""What one end keeps for a peer that does not read. It goes beyond by one request, or by the answers to those of one
message."""
EVENTS_AHEAD = 256
"""Events of a watch that the owner sends before the other end has taken the first of them."""

Kind = TypeVar("Kind")


class MalformedMessage(ValueError):
    """Bytes that no replica sends."""


class Asked(Struct, array_like=True, frozen=True):
    """A request, under a number that the replica that asks has chosen."""

    number: int
    kind: str
    """The name of the request's type."""
    body: msgspec.Raw
    traceparent: str = ""


class Answered(Struct, array_like=True, frozen=True):
    """The answer to the request with this number, or one event of a watch. With the reply of a shard goes the rest of
    an `Answer`.
    """

    number: int
    body: msgspec.Raw
    failure: str = ""
    """The reason why there is no answer."""
    revision: Int64 = 0
    epoch: Int64 = 0
    owner: str = ""
    shards: tuple[Int64, ...] = ()


class Watch(Struct, frozen=True):
    """A watch of a group, after a revision or, with None, from now on."""

    namespace: str
    group_id: str
    after_revision: Int64 | None


class Holds(Struct, frozen=True):
    """A question to the replica with this id: does it hold the shard, in this epoch?"""

    replica_id: str
    shard_id: int
    epoch: Int64


class Released(Struct, frozen=True):
    """Shards have become free. It is answered with nothing."""


class TopicsChanged(Struct, frozen=True):
    """Topics of these namespaces have changed. It is answered with nothing."""

    namespaces: list[str]


class Watched(Struct, array_like=True, frozen=True):
    """An event of a watch, or its end: then without an event, and maybe with the fields of a `NotInJournal`."""

    event: JournalEvent | None = None
    refusal: tuple[Int64, Int64, Int64 | None, str] | None = None


class MoreTaken(Struct, frozen=True):
    """Half of `EVENTS_AHEAD` further events of the watch with this number were taken. It has no answer."""


class Cancelled(Struct, frozen=True):
    """The caller of the request with this number is gone. It has no answer."""


_OURS = (Watch, MoreTaken, Cancelled, Holds, Released, TopicsChanged)
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (*REPLY_OF, *_OURS)}
_encode = msgspec.msgpack.Encoder().encode


def pack(value: Any) -> bytes:
    """A value that `unpack` reads by its type."""
    return _encode(value)


def unpack(kind: type[Kind], data: bytes | msgspec.Raw) -> Kind:
    """The value of this type; raises `MalformedMessage`."""
    try:
        value: Kind = _decoder(kind).decode(data)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"not what a replica sends: {type(error).__name__}") from error
    return value


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def pack_asked(number: int, request: Any, traceparent: str = "") -> bytes:
    return _encode((number, type(request).__name__, request, traceparent))


def read_request(asked: Asked) -> Any:
    """The request; raises `MalformedMessage`."""
    if asked.kind not in _KINDS:
        raise MalformedMessage("not a request between replicas")
    return unpack(_KINDS[asked.kind], asked.body)


def pack_answer(number: int, answer: Answer) -> bytes:
    """An owner's answer, as the replica that asked receives it."""
    moved = as_moved(answer)
    return _encode((number, moved.reply, "", moved.revision, moved.epoch, moved.owner, moved.shards))


def read_answer(request: Request, answered: Answered) -> Answer:
    """The answer to this request; raises `MalformedMessage`."""
    reply: Reply = unpack(REPLY_OF[type(request)], answered.body)
    return Answer(reply, answered.revision, answered.epoch, answered.owner, answered.shards)


class Outbox:
    """What one end of a stream has to send, in order. `size` is in bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._unsent: dict[int, bytes] = {}
        self._next_key = 0
        self._filled = asyncio.Event()
        self._sent = asyncio.Event()

    def put(self, data: bytes) -> int:
        """Send this with the next message. The result is for `drop`."""
        self._next_key += 1
        self._unsent[self._next_key] = data
        self.size += len(data)
        self._filled.set()
        return self._next_key

    def drop(self, key: int) -> bool:
        """Do not send it; False if it is on its way."""
        data = self._unsent.pop(key, None)
        if data is None:
            return False
        self.size -= len(data)
        return True

    async def send_all(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Write messages until the task is cancelled.

        The task is resumed after the callbacks that are due in this turn of the event loop, so all that they put goes
        in one message. While a message is written, the next one becomes larger: gRPC's own costs are shared by more.
        """
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._unsent:
                await write(self._next_message())
                self._sent.set()

    async def until(self, has_room: Callable[[], bool]) -> None:
        """Wait until this is so. It is looked at after each message that was written."""
        while not has_room():
            self._sent.clear()
            await self._sent.wait()

    def _next_message(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        for key, data in list(islice(self._unsent.items(), MAX_BATCH)):
            if parts and size + len(data) > MAX_BATCH_BYTES:
                break
            parts.append(data)
            size += len(data)
            del self._unsent[key]
        self.size -= size
        return b"\xdc" + len(parts).to_bytes(2, "big") + b"".join(parts)
