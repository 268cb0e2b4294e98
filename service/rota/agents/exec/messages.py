"""Messages between the wrapper and its guardian: JSON lines over a socket, which ends when either of them does."""

from __future__ import annotations

import json
import socket
import sys
from time import CLOCK_MONOTONIC, clock_gettime
from typing import Any

if sys.platform == "linux":
    from time import CLOCK_BOOTTIME

    _CLOCK = CLOCK_BOOTTIME
else:
    _CLOCK = CLOCK_MONOTONIC

_PIECE = 65_536
_PATIENCE_S = 0.5


def now_ms() -> int:
    """Return the clock of deadlines, which is the same in all processes of a machine. On Linux it includes sleep."""
    return int(clock_gettime(_CLOCK) * 1000)


def from_loop_ms(loop_time_s: float) -> int:
    """Convert a time of an event loop's clock to this clock."""
    return now_ms() + int((loop_time_s - clock_gettime(CLOCK_MONOTONIC)) * 1000)


class Lines:
    """One end of the socket. Reading never waits."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(False)
        self._buffer = b""
        self.is_over = False
        """The peer process has closed its end."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Send a message. A peer that does not read for half a second counts as ended, and the socket is closed."""
        try:
            self._socket.settimeout(_PATIENCE_S)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            self._socket.setblocking(False)
        except TimeoutError:
            # Half a line may have been sent, so later lines would be unreadable.
            self._socket.setblocking(False)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # The peer has ended; its last messages can still be read.

    def read(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived since the last call."""
        while not self.is_over:
            try:
                piece = self._socket.recv(_PIECE)
            except BlockingIOError:
                break
            except ConnectionResetError:
                piece = b""
            self.is_over = not piece
            self._buffer += piece
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._socket.close()
