"""The polling thread of gRPC: the garbage collector does not end it, and a loop with long turns does not hold it up."""

import asyncio
import socket
import subprocess
import sys
import time
from contextlib import suppress
from statistics import median
from typing import Any

from rota.api.grpc.server import GrpcServer
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
