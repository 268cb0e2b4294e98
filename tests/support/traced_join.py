"""The path of a join through the product, as a newcomer follows it: `python -m tests.support.traced_join` (ADR 131)."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import rota
from rota.protocol.limits import Limits
from rota.server.lifecycle import serve
from rota.server.settings import Address, Settings
from tests.support.ports import free_port

JOINS = 5
PRODUCT = str(Path(rota.__file__).parent)
JOIN = {"protocol_type": "worker", "protocols": [{"name": "range"}], "group_instance_id": "one", "wait_ms": 20_000}


class Trace:
    """The files of `service/rota` in the order in which their functions were called.

    Each turn of a coroutine is a call as well.
    """

    def __init__(self) -> None:
        self.stops: list[str] = []

    @property
    def files(self) -> set[str]:
        return set(self.stops)

    @property
    def changes(self) -> int:
        """How often a call was in another file than the one before it."""
        return len(self.stops)

    def enter(self, file: str) -> None:
        if self.stops[-1:] != [file]:
            self.stops.append(file)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls of this thread, and of threads that start within the block."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PRODUCT):
            self.enter(file.removeprefix(f"{PRODUCT}/"))


async def trace_a_join(directory: Path) -> Trace:
    """Trace the first join of a group over HTTP to one replica on SQLite, from the request until its parked reply.

    The shortest trace of some groups: the replica renews its leases, and measures its loop, in between.
    """
    address, stop = Address("127.0.0.1", free_port()), asyncio.Event()
    settings = Settings(
        store=f"sqlite:///{directory / 'rota.db'}",
        http=address,
        grpc=None,
        limits=Limits(initial_rebalance_delay_ms=20),
    )
    serving = asyncio.create_task(serve(settings, stop=stop))
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
        await _until_ready(client)
        traces = [await _trace(client, f"g-{number}") for number in range(JOINS)]
    stop.set()
    await serving
    return min(traces, key=lambda trace: trace.changes)


async def _trace(client: httpx.AsyncClient, group_id: str) -> Trace:
    trace = Trace()
    with trace.recording():
        answer = await client.post(f"/v1/namespaces/default/groups/{group_id}/join", json=JOIN)
    answer.raise_for_status()
    return trace


async def _until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                if (await client.get("/readyz")).status_code == 200:
                    return
            except httpx.ConnectError:
                pass
            await asyncio.sleep(0.01)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        trace = asyncio.run(trace_a_join(Path(directory)))
    for stop in trace.stops:
        print(stop)
    print(f"{len(trace.files)} files, {trace.changes} changes of file")


if __name__ == "__main__":
    main()
