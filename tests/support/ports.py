"""Free loopback ports that nothing else on the machine takes between asking and listening."""

from __future__ import annotations

import os
import socket
from itertools import count

# Below the range from which the kernel takes ports of outgoing connections, one of which could otherwise take ours.
_FIRST_PORT = 12_000
_LAST_PORT = 32_000
# Each process walks the range from a place of its own, so that test runs side by side do not meet.
_steps = count(os.getpid() * 97)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago; no two calls of a process return the same one."""
    for _ in range(_LAST_PORT - _FIRST_PORT):
        port = _FIRST_PORT + next(_steps) % (_LAST_PORT - _FIRST_PORT)
        if _is_free(port):
            return port
    raise RuntimeError(f"no free port between {_FIRST_PORT} and {_LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do; without it a port with connections in TIME_WAIT would seem taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
