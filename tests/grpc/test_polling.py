"""gRPC's polling thread is not shut down by the garbage collector: it would wait for the loop that it stops."""

import subprocess
import sys

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
