"""gRPC's polling thread: it lives as long as the process, and an event loop reads all of its wake-ups at once.

grpcio counts the channels, servers and calls that exist, and joins its polling thread when the last of them is
deallocated. If the garbage collector deallocates it, the thread of the event loop waits inside of the collection for
calls that only this loop could end: the process hangs (https://github.com/grpc/grpc/issues/22365). One reference that
is never released keeps the count above zero.

The thread wakes the loop with one byte for each event. grpcio's handler reads one byte in each turn of the loop, but
handles all events. Under load the unread bytes accumulate. About 280 of them fill the socket: the thread then waits
until three quarters are read, and no message reaches the loop for 200 of its turns, which may take seconds.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import grpc

_MOST_BYTES = 4096

_prepared: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_polling: set[int] = set()
"""The id of the process in which gRPC polls. A forked child has its parent's id here."""


def check_not_forked() -> None:
    """Raise RuntimeError in the forked child of a process that has used gRPC: its calls would wait forever."""
    if _polling and os.getpid() not in _polling:
        raise RuntimeError(
            f"this process, {os.getpid()}, was forked from one that has used gRPC, and gRPC does not work in it: "
            "start processes by spawn, or connect to an http:// address"
        )


def keep_polling() -> None:
    """Acquire the reference, and let the running loop read all bytes. Call it before a channel or a server is created.

    Further calls on the same loop have no effect.
    """
    check_not_forked()
    loop = asyncio.get_running_loop()
    if loop in _prepared:
        return
    _polling.add(os.getpid())
    _prepared.add(loop)
    add_reader = loop.add_reader

    def add_reader_of_all(read_end: Any, handle: Callable[[], None]) -> None:
        if isinstance(read_end, socket.socket):  # A later grpcio may wake the loop in another way.
            handle = partial(_handle_all, read_end, handle)
        add_reader(read_end, handle)

    loop.add_reader = add_reader_of_all  # type: ignore[assignment, method-assign]
    try:
        grpc.aio.init_grpc_aio()  # adds its reader to a loop that it does not know
    finally:
        del loop.add_reader


def _handle_all(read_end: socket.socket, handle: Callable[[], None]) -> None:
    """Call the handler, which reads one byte, once for each byte that has arrived."""
    try:
        for _ in read_end.recv(_MOST_BYTES, socket.MSG_PEEK):
            with suppress(RuntimeError):  # The event is for another loop, which is closed: no call waits for it.
                handle()
    except BlockingIOError:
        return  # A loop of another thread has read it: the socket is for all loops of the process.
