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
    """The clock of deadlines, the same in all processes of a machine. On Linux it goes on while the machine sleeps."""
    return int(clock_gettime(_CLOCK) * 1000)


def from_loop_ms(loop_time_s: float) -> int:
    """A moment of an event loop's clock, in ours."""
    return now_ms() + int((loop_time_s - clock_gettime(CLOCK_MONOTONIC)) * 1000)


class Lines:
    """One end of the socket. Reading never waits."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(False)
        self._buffer = b""
        self.is_over = False
        """The other end is closed: the process there has ended."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Send a message. A peer that does not read for half a second counts as gone, and is to see us as gone, too."""
        try:
            self._socket.settimeout(_PATIENCE_S)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            self._socket.setblocking(False)
        except TimeoutError:
            # Half a line may be out, so that nothing that follows would be understood.
            self._socket.setblocking(False)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # It has ended; its last messages are still to be read.

    def read(self) -> list[dict[str, Any]]:
        """The messages that have come since."""
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
