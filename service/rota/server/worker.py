"""One process of `rota serve --workers N`, started by its supervisor with `python -m rota.server.worker`."""

from __future__ import annotations

import asyncio
import pickle
import sys
from functools import partial

from rota.server.lifecycle import run, serve
from rota.server.own_ports import OwnPorts
from rota.server.settings import Settings

_STDIN = 0
_LENGTH = 4


def main() -> int:
    """Serve until asked to stop, or until the supervisor has ended."""
    settings, own, peer_secret = _read()
    return run(settings, partial(_serve, own=own, peer_secret=peer_secret))


def pack(settings: Settings, own: OwnPorts, peer_secret: str) -> bytes:
    """Return a worker's standard input. Arguments or environment are not used, because a URL may contain a password."""
    packed = pickle.dumps((settings, own, peer_secret))
    return len(packed).to_bytes(_LENGTH, "big") + packed


def _read() -> tuple[Settings, OwnPorts, str]:
    """Read the input. The pipe stays open, so it has no end."""
    length = int.from_bytes(sys.stdin.buffer.read(_LENGTH), "big")
    settings, own, peer_secret = pickle.loads(sys.stdin.buffer.read(length))
    assert isinstance(settings, Settings)
    assert isinstance(own, OwnPorts)
    assert isinstance(peer_secret, str)
    return settings, own, peer_secret


async def _serve(settings: Settings, own: OwnPorts, peer_secret: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def orphaned() -> None:
        loop.remove_reader(_STDIN)
        stop.set()

    # The supervisor writes no more data: the pipe becomes readable when the supervisor ends.
    loop.add_reader(_STDIN, orphaned)
    try:
        await serve(settings, stop=stop, own=own, peer_secret=peer_secret)
    finally:
        loop.remove_reader(_STDIN)


if __name__ == "__main__":
    sys.exit(main())
