"""A load generator in its own process: reads a `Plan` as JSON, sends requests as fast as they are answered.

`run` starts it; `python -m bench.load` is it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from typing import cast

import uvloop

from bench.servers import ROOT
from bench.setting import HOST

_OK = b"HTTP/1.1 200"
_REFUSALS = (b"HTTP/1.1 4", b"HTTP/1.1 5")
_TAIL = len(_OK) - 1
FRESH = "fresh-request-id"
"""Each time that a request is sent, this text in it is replaced by another one, as gateways add a new id to each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Each connection sends `pipeline` requests at once, waits until all are answered, and goes on.

    Connection n of N gets every Nth request, from the nth on: so requests in the right order give each one group.
    """

    port: int
    requests: tuple[str, ...]
    connections: int
    pipeline: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    answered: int
    seconds: float


def run(plan: Plan) -> Outcome:
    """Carry the plan out in a process of its own. Every answer must be a 200: a figure of refusals says nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=json.dumps(asdict(plan)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the load ended early:\n{done.stderr}")
    return Outcome(**json.loads(done.stdout))


class _Sender(asyncio.Protocol):
    """One connection. Answers are counted by their status lines; their bodies are not looked at."""

    def __init__(self, volleys: list[bytes], size: int, until: float) -> None:
        self.answered = 0
        self._is_fresh = FRESH.encode() in volleys[0]
        self._sent = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._volleys = cycle(volleys)
        self._size = size
        self._until = until
        self._awaited = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        # A status line may be cut in two by a packet's end; the tail is too short to hold a whole one.
        seen = self._tail + data
        self._tail = seen[-_TAIL:]
        if any(refusal in seen for refusal in _REFUSALS):
            self.done.set_exception(RuntimeError(f"refused: {seen!r:.1000}"))
            self._transport.close()
            return
        good = seen.count(_OK)
        self.answered += good
        self._awaited -= good
        if self._awaited == 0:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def _send(self) -> None:
        if time.perf_counter() < self._until:
            self._awaited = self._size
            volley = next(self._volleys)
            if self._is_fresh:
                self._sent += 1
                volley = volley.replace(FRESH.encode(), b"%016x" % self._sent)
            self._transport.write(volley)
        elif not self.done.done():
            self.done.set_result(None)
            self._transport.close()


async def _carry_out(plan: Plan) -> Outcome:
    requests = [request.encode() for request in plan.requests]
    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    senders = []
    for number in range(plan.connections):
        # Each connection has requests of its own, as each member or each process with members has.
        own = requests[number :: plan.connections] or [requests[number % len(requests)]]
        volleys = [b"".join((own * plan.pipeline)[i : i + plan.pipeline]) for i in range(len(own))]
        make = partial(_Sender, volleys, plan.pipeline, started + plan.seconds)
        senders.append((await loop.create_connection(make, HOST, plan.port))[1])
    await asyncio.gather(*(sender.done for sender in senders))
    return Outcome(sum(sender.answered for sender in senders), time.perf_counter() - started)


def main() -> None:
    plan = json.load(sys.stdin)
    plan["requests"] = tuple(plan["requests"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(_carry_out(Plan(**plan)))
    json.dump(asdict(outcome), sys.stdout)


if __name__ == "__main__":
    main()
