"""Heartbeats and commits between the workers of one machine, as messages on a Unix socket: an rpc costs far more.

A message is a head, its length, number and kind, and heartbeats, or one commit. The answer has the same number and
kind. Answers come in any order: a commit is answered once it is durable. Workers of one supervisor are of one release,
and its folder, in which their sockets are, is open to its user alone. So neither secrets nor an older form are needed
here.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import cast

from rota.api.heartbeats import answer_all
from rota.api.peer.answers import packed, packed_answers, read_answers
from rota.api.peer.methods import MAX_MESSAGE_BYTES
from rota.protocol.messages import CommitOffsets
from rota.replica.forwarding import OWNER_ANSWERS_MS, Beats, NoAnswer
from rota.replica.ports import Answer
from rota.runtime.coordinator import LocalCoordinator
from rota.wire.envelopes import MalformedEnvelope, pack_heartbeats, unpack, unpack_heartbeats

RECONNECT_S = 1.0
"""How long a link waits before it connects again."""
_CLOSED = NoAnswer("the connection to it is closed")
_LATE = NoAnswer("no answer in time")
_HEAD = struct.Struct(">IIB")
_log = logging.getLogger(__name__)


class Kind(IntEnum):
    """The content of a message."""

    HEARTBEATS = 0
    COMMIT = 1


def socket_of(folder: Path, peer_address: str) -> Path:
    """Where the worker with this address for peers has its socket."""
    return folder / peer_address


class _Messages(asyncio.Protocol, ABC):
    """One end of a connection: cuts what arrives into messages."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._rest = bytearray()
        """The beginning of a message that has not arrived in full."""
        self._size = 0
        """Of that message, as far as it is known."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's derives from no class of asyncio

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._size:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at, self._size = 0, _HEAD.size
        # What follows a message that cannot be read is numbered by a table that is not the writer's.
        while len(data) - at >= _HEAD.size and not self.transport.is_closing():
            length, number, kind = _HEAD.unpack_from(data, at)
            if length > MAX_MESSAGE_BYTES:
                self.transport.abort()
                return
            begin = at + _HEAD.size
            if len(data) - begin < length:
                self._size = _HEAD.size + length
                break
            at = begin + length
            self.received(number, kind, data[begin:at])
        self._rest += data[at:]

    def send(self, number: int, kind: int, message: bytes) -> None:
        self.transport.write(_HEAD.pack(len(message), number, kind) + message)

    @abstractmethod
    def received(self, number: int, kind: int, message: bytes) -> None:
        """A message has arrived in full."""


class UnixServer:
    """Answers the heartbeats and commits that the workers beside this one forward."""

    def __init__(self, local: LocalCoordinator, path: Path) -> None:
        self._local = local
        self._path = path
        self._server: asyncio.Server | None = None
        self.connections: set[_Answering] = set()

    async def start(self) -> None:
        """Raises `OSError` where there cannot be a socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Answering(self._local, self.connections), self._path)

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self.connections):
            connection.transport.close()
        await self._server.wait_closed()
        self._path.unlink(missing_ok=True)


class _Answering(_Messages):
    def __init__(self, local: LocalCoordinator, connections: set[_Answering]) -> None:
        super().__init__()
        self._local = local
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._connections.discard(self)

    def received(self, number: int, kind: int, message: bytes) -> None:
        try:
            if kind == Kind.HEARTBEATS:
                beats, done = unpack_heartbeats(message), partial(self._answer_all, number)
                answer_all(self._local, beats, done, OWNER_ANSWERS_MS / 1000)
            else:
                self._local.submit(
                    unpack(CommitOffsets, message), lambda answer: self._answer(number, kind, packed(answer))
                )
        except Exception as error:
            # The other end gives its calls the answer of a silent owner.
            _log.error("a forwarded message was not answered", exc_info=error)
            self.transport.abort()

    def _answer_all(self, number: int, answers: Sequence[Answer]) -> None:
        self._answer(number, Kind.HEARTBEATS, packed_answers(answers))

    def _answer(self, number: int, kind: int, message: bytes) -> None:
        if not self.transport.is_closing():
            self.send(number, kind, message)


Received = Callable[[bytes | NoAnswer], None]
Answered = Callable[[Sequence[Answer] | NoAnswer], None]


class UnixLink:
    """The connection to one worker beside this one. It is made when it is first wanted, and again when it has ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asking: _Asking | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connect_at_s = 0.0

    def send(self, message: bytes, limit_s: float, done: Received, kind: Kind = Kind.HEARTBEATS) -> bool:
        """Send a message; `done` gets its answer, or why there is none within so many seconds, later.

        False where there is no connection yet: then the message has to go another way. Heartbeats that are not
        answered in time end the connection. A commit may wait for a slow store, and ends alone.
        """
        asking = self._connected()
        if asking is not None:
            asking.ask(message, kind, limit_s, done)
        return asking is not None

    def ask(self, heartbeats: Sequence[Beats], limit_s: float, done: Answered) -> bool:
        """The same for heartbeats, which are answered in their order."""
        asking = self._connected()
        if asking is not None:
            asking.ask_all(heartbeats, limit_s, done)
        return asking is not None

    @property
    def is_idle(self) -> bool:
        """Nothing waits for an answer."""
        return self._asking is None or not self._asking.asked

    def _connected(self) -> _Asking | None:
        asking = self._asking
        if asking is not None and not asking.transport.is_closing():
            return asking
        loop = asyncio.get_running_loop()
        if self._connecting is None and loop.time() >= self._connect_at_s:
            self._connect_at_s = loop.time() + RECONNECT_S
            self._connecting = loop.create_task(self._connect())
        return None

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._asking is not None:
            self._asking.transport.abort()
            self._asking.end()

    async def _connect(self) -> None:
        try:
            _, self._asking = await asyncio.get_running_loop().create_unix_connection(_Asking, str(self._path))
        except OSError as error:
            _log.debug("no socket of a worker beside this one", extra={"path": str(self._path), "error": str(error)})
        finally:
            self._connecting = None


class _Asking(_Messages):
    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self.asked: dict[int, tuple[asyncio.TimerHandle, Received]] = {}
        """What waits for an answer, by the numbers of the messages."""

    def ask_all(self, heartbeats: Sequence[Beats], limit_s: float, done: Answered) -> None:
        self.ask(pack_heartbeats(heartbeats), Kind.HEARTBEATS, limit_s, partial(self._answered, len(heartbeats), done))

    def _answered(self, count: int, done: Answered, outcome: bytes | NoAnswer) -> None:
        if isinstance(outcome, NoAnswer):
            done(outcome)
            return
        try:
            answers = read_answers(outcome)
            if len(answers) != count:
                raise MalformedEnvelope(f"{len(answers)} replies to {count} heartbeats")
        except Exception as error:
            self.transport.abort()
            done(NoAnswer(str(error)))
        else:
            done(answers)

    def ask(self, message: bytes, kind: Kind, limit_s: float, done: Received) -> None:
        number = self._number = (self._number + 1) & 0xFFFFFFFF
        loop = asyncio.get_running_loop()
        if kind == Kind.HEARTBEATS:
            deadline = loop.call_later(limit_s, self.give_up)
        else:
            deadline = loop.call_later(limit_s, self._forget, number)
        self.asked[number] = (deadline, done)
        self.send(number, kind, message)

    def received(self, number: int, _kind: int, message: bytes) -> None:
        asked = self.asked.pop(number, None)
        if asked is not None:
            deadline, done = asked
            deadline.cancel()
            done(message)

    def _forget(self, number: int) -> None:
        """The answer to this message is late; the connection is as good as before."""
        _, done = self.asked.pop(number)
        done(_LATE)

    def give_up(self) -> None:
        """The other end is silent: end the connection, and with it all calls that wait for an answer."""
        self.transport.abort()
        self.end(_LATE)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.end()

    def end(self, why: NoAnswer = _CLOSED) -> None:
        """Nothing more is answered."""
        asked, self.asked = self.asked, {}
        for deadline, done in asked.values():
            deadline.cancel()
            done(why)
