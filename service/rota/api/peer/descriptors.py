"""Clients' connections on their way from one worker to another of its supervisor: descriptors on a Unix socket.

A message is one connection: its descriptor, and the bytes that the giver has read from it. The sockets keep the bounds
of messages, so that one arrives whole or not at all, and none is sent in part. The taker answers each with one byte,
and the giver reads the answers before it sends the next one: so it notices a taker that is silent, and one that has
enough. Nothing waits: where a message cannot be sent at once, the giver keeps the connection.

A connection that was sent is the taker's. If the taker ends before it has read the message, the kernel closes the
connection: its request was carried out by no process. As with the messages of `unix`, the sockets are in a folder that
is open to their user alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 64 * 1024
"""Of a connection that is sent: so much may have been read from it."""
RECONNECT_S = 1.0
"""How long a link waits before it connects again."""
SILENT_S = 1.0
"""A taker that has not answered for so long gets no more connections until it answers."""
ENOUGH_S = 10.0
"""The same for one that has enough."""
RECEIVED_AT_ONCE = 64
_ONE_DESCRIPTOR = socket.CMSG_LEN(4)
_TAKEN, _ENOUGH = b"\1", b"\0"
_log = logging.getLogger(__name__)

Take = Callable[[socket.socket, bytes], None]
"""Gets a connection, which is its own from then on, with the bytes that were read from it."""


class GivingLink:
    """The way to the taker that listens at `path`. It is connected when it is first wanted, and after its end again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._not_before_s = float("-inf")
        """Until then nothing is sent, by the clock of the event loop."""
        self._unanswered = 0
        self._answered_at_s = 0.0
        """When the taker last answered, or when it was asked after it had answered everything."""

    def give(self, descriptor: int, received: bytes) -> bool:
        """Whether the connection has gone to the taker. Then close the descriptor here, without shutting it down."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._not_before_s or len(received) > MOST_BYTES:
            return False
        try:
            if self._socket is None:
                self._socket = self._connected()
            if not self._is_ready(self._socket, now_s):
                return False
            socket.send_fds(self._socket, [received], [descriptor])
        except BlockingIOError:  # its queue is full
            return False
        except OSError as error:
            _log.debug("no connection can be handed over", extra={"path": str(self._path), "error": str(error)})
            self.close()
            self._not_before_s = now_s + RECONNECT_S
            return False
        self._unanswered += 1
        return True

    def has_taker(self) -> bool:
        """Whether it is connected. Its last answers may be unread."""
        if self._socket is None:
            return False
        hung_up = select.poll()
        hung_up.register(self._socket, select.POLLHUP)
        return not hung_up.poll(0)

    def close(self) -> None:
        """Connections that were sent reach the taker nevertheless."""
        if self._socket is not None:
            self._socket.close()
            self._socket, self._unanswered = None, 0

    def _connected(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        try:
            link.connect(str(self._path))  # at once, or not at all
        except OSError:
            link.close()
            raise
        return link

    def _is_ready(self, link: socket.socket, now_s: float) -> bool:
        """Read the answers that are there. Raises `OSError` where the taker has gone."""
        with suppress(BlockingIOError):
            while self._unanswered:
                answer = link.recv(1)
                if not answer:
                    raise ConnectionResetError("the taker has closed its socket")
                self._unanswered -= 1
                self._answered_at_s = now_s
                if answer == _ENOUGH:
                    self._not_before_s = now_s + ENOUGH_S
        if not self._unanswered:
            self._answered_at_s = now_s
        return now_s >= self._not_before_s and now_s - self._answered_at_s <= SILENT_S


class TakingSocket:
    """Listens for the workers beside this one, and takes the connections that they hand over."""

    def __init__(self, path: Path, take: Take, has_room: Callable[[], bool]) -> None:
        """Without room for more, each that comes nevertheless is taken, and its giver asked to keep the next ones."""
        self._path = path
        self._take = take
        self._has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._listening: socket.socket | None = None
        self._links: set[socket.socket] = set()

    def start(self) -> None:
        """Raises `OSError` where there cannot be such a socket."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listening.setblocking(False)
            self._path.unlink(missing_ok=True)  # a worker that was killed may have left it
            listening.bind(str(self._path))
            listening.listen()
        except OSError:
            listening.close()
            raise
        self._listening = listening
        self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Take those that have been sent, and no more."""
        if self._listening is None:
            return
        self._loop.remove_reader(self._listening)
        self._accept(self._listening)
        self._listening.close()
        self._listening = None
        self._path.unlink(missing_ok=True)
        for link in tuple(self._links):
            # From now on the giver's attempts fail, and it keeps its connections.
            with suppress(OSError):
                link.shutdown(socket.SHUT_RD)
            while self._receives(link):
                pass
            self._end(link)

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                link, _ = listening.accept()
                link.setblocking(False)
                self._links.add(link)
                self._loop.add_reader(link, self._receive, link)

    def _receive(self, link: socket.socket) -> None:
        for _ in range(RECEIVED_AT_ONCE):
            if not self._receives(link):
                return

    def _receives(self, link: socket.socket) -> bool:
        """Take the next connection of a link; whether there may be another one."""
        try:
            # `socket.recv_fds` passes no flags on.
            received, ancillary, _, _ = link.recvmsg(MOST_BYTES, _ONE_DESCRIPTOR, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # The giver has gone without reading all answers. Its connections come behind this error.
            return True
        if not received:
            self._end(link)
            return False
        with suppress(OSError):  # the giver has gone, or reads no answers
            link.send(_TAKEN if self._has_room() else _ENOUGH)
        for _, _, descriptor in ancillary:
            self._take_over(int.from_bytes(descriptor, sys.byteorder), received)
        return True

    def _end(self, link: socket.socket) -> None:
        if link in self._links:
            self._links.discard(link)
            self._loop.remove_reader(link)
            link.close()

    def _take_over(self, descriptor: int, received: bytes) -> None:
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError as error:
            os.close(descriptor)
            _log.warning("a connection that was handed over is none", extra={"error": str(error)})
            return
        connection.setblocking(False)
        self._take(connection, received)
