"""The polling thread of gRPC: the garbage collector does not end it, and a loop with long turns does not hold it up."""

import asyncio
import socket
import subprocess
import sys
import time
from contextlib import suppress
from statistics import median
from typing import Any

import pytest

from rota.client.transports.grpc import GrpcTransport
from rota.grpc_polling import _handle_all
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import ListGroups
from rota.server.grpc.server import GrpcServer
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, G, stub

PROGRAM = """
import asyncio, gc, threading
from rota.client.transports.rpc import _open

async def open_and_close():
    channel = _open("127.0.0.1:1", None)
    await channel.close()

asyncio.run(open_and_close())
gc.collect()
print(*(thread.name for thread in threading.enumerate()))
"""


FORKING = """
import asyncio, os, rota
from rota.client.transports.rpc import _open

async def open_and_close():
    await _open("127.0.0.1:1", None).close()

asyncio.run(open_and_close())
if os.fork() == 0:
    try:
        rota.connect("grpc://127.0.0.1:1")
    except RuntimeError as error:
        print(error, flush=True)
    rota.connect("http://127.0.0.1:1")
    os._exit(0)
os.wait()
"""


def test_the_last_channel_does_not_end_the_polling() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=30)

    assert "_poll_wrapper" in ended.stdout, ended.stderr


async def test_a_loop_with_long_turns_handles_all_events(server: GrpcServer, channel: Channel) -> None:
    """The handler of gRPC would leave a byte for each event but one in a turn, until its thread can write no more."""
    selector: Any = vars(asyncio.get_running_loop())["_selector"]
    (woken,) = [key.fileobj for key in selector.get_map().values() if isinstance(key.fileobj, socket.socket)]
    calls = [asyncio.ensure_future(stub(channel).FindCoordinator(pb.FindCoordinatorRequest(**G))) for _ in range(100)]
    left = []
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        with suppress(BlockingIOError):
            left.append(len(woken.recv(4096, socket.MSG_PEEK)))
        time.sleep(0.003)  # noqa: ASYNC251 - the loop is busy

    # Not the most: this task may be stopped between the handler and its look.
    assert median(left) < 6


def test_a_forked_child_of_a_process_with_grpc_is_refused() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKING], check=False, capture_output=True, text=True, timeout=30)

    assert "was forked from one that has used gRPC" in ended.stdout, ended.stderr


def test_events_behind_one_for_a_closed_loop_are_handled() -> None:
    read_end, write_end = socket.socketpair()
    read_end.setblocking(False)
    write_end.send(bytes(3))
    handled: list[bytes] = []

    def handle() -> None:
        handled.append(read_end.recv(1))
        if len(handled) == 1:
            raise RuntimeError("Event loop is closed")

    with read_end, write_end:
        _handle_all(read_end, handle)

    assert len(handled) == 3


async def test_a_proxy_of_the_environment_is_for_other_traffic(
    server: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("grpc_proxy", raising=False)
    transport = GrpcTransport([f"grpc://{server.address}"])

    received = await transport.send(ListGroups("default"), timeout_ms=10_000)

    await transport.close()
    assert received.reply.error is ErrorCode.NONE
