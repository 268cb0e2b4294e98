"""What callers without credentials can do to a server with rules: its memory, its probes, the heartbeats of others."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles

import httpx

from bench.attackers import ATTACKS, BEGUN, CLUSTER
from bench.figures import Effort, Figure
from bench.servers import ROOT, Server, rota_server
from bench.setting import HOST
from rota.core.access.rules import ROLES, Rule
from rota.core.access.tokens import RANDOM_BYTES, TokenRecord, mint, parse
from rota.server.access.tokens import write_tokens
from tests.support.ports import free_port
from tests.support.processes import Process

SECONDS = 6.0
SETTLE_SECONDS = 1.0
MEMBERS = 20
HEARTBEAT_EVERY_S = 0.25
PROBE_EVERY_S = 0.02
QUIET = "no attack"
PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
FAILED_MS = 10_000.0
"""A call that is refused, or takes longer, counts as this long."""

MOST_KB = 1_500_000
"""With more memory than this of the server, the attack ends early."""
MEMORY_AIM_MB = 64.0 * 1.048_576
PROBE_AIM_MS = 250.0
HEARTBEAT_AIM_MS = 1_000.0
"""A third of the usual interval: no member comes near its session's end."""

RULES = """
[[rules]]
name = "workers"
subjects = ["group:workers"]
actions = ["member"]

[[issuers]]
kind = "kubernetes"
issuer = "{issuer}"
audiences = ["rota"]
review = "http://{host}:{port}"
"""


def run(effort: Effort) -> list[Figure]:
    """One server for each attack, which is attacked for some seconds by another process."""
    known = (QUIET, *ATTACKS)
    if unknown := set(effort.attacks).difference(known):
        raise SystemExit(f"no such attack: {', '.join(unknown)}; there are {', '.join(known)}")
    samples: dict[str, list[tuple[float, float, float]]] = {name: [] for name in effort.attacks or known}
    for _ in range(effort.repeats):
        for name, taken in samples.items():
            with tempfile.TemporaryDirectory(prefix="rota-bench-") as directory:
                taken.append(asyncio.run(_attacked(name, Path(directory), SECONDS * effort.scale)))
    return [figure for name, taken in samples.items() for figure in _figures(name, taken)]


def _figures(name: str, taken: list[tuple[float, float, float]]) -> Iterator[Figure]:
    memory, probes, lateness = zip(*taken, strict=True)
    name = name.replace("_", " ")
    yield Figure("attacks", f"{name}: memory over rest", "MB", memory, aim=MEMORY_AIM_MB)
    yield Figure("attacks", f"{name}: /healthz, 99th percentile", "ms", probes, aim=PROBE_AIM_MS)
    yield Figure("attacks", f"{name}: latest heartbeat of others", "ms", lateness, aim=HEARTBEAT_AIM_MS)


async def _attacked(name: str, directory: Path, seconds: float) -> tuple[float, float, float]:
    review_port, token = free_port(), _set_up(directory)
    rules = RULES.format(issuer=CLUSTER, host=HOST, port=review_port)
    (directory / "access.toml").write_text(rules)
    guard = ("--access-file", str(directory / "access.toml"), "--access-tokens-file", str(directory / "tokens"))
    with rota_server(directory, f"sqlite:///{directory / 'rota.db'}", *guard) as server:
        headers = {"authorization": f"Bearer {token}"}
        url = f"http://{HOST}:{server.port}"
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
            requests = [await _enter(client, number) for number in range(MEMBERS)]
        rest_kb = server.resident_kb()
        with _attackers(name, directory, server, review_port):
            await asyncio.sleep(SETTLE_SECONDS)
            memory, probes, lateness = [0.0], list[float](), list[float]()
            repeat = partial(_repeat, seconds, lambda: memory[0] < MOST_KB)
            await asyncio.gather(
                repeat(0.05, partial(_weigh, server, memory)),
                repeat(PROBE_EVERY_S, lambda: _timed(probes, _ask(server.port, PROBE))),
                *(
                    repeat(HEARTBEAT_EVERY_S, partial(_heartbeat, lateness, server.port, request))
                    for request in requests
                ),
            )
    if len(probes) < 2:  # it took so much memory before
        probes += [FAILED_MS] * 2
    return (max(memory) - rest_kb) / 1_000, quantiles(probes, n=100)[-1], max(lateness, default=FAILED_MS)


def _set_up(directory: Path) -> str:
    text = mint(secrets.token_bytes(RANDOM_BYTES))
    presented = parse(text)
    scope = Rule("scope", ("token:members",), ROLES["member"], ("default",))
    write_tokens(directory / "tokens", [TokenRecord(presented.token_id, "members", presented.digest, (scope,))])
    return text


@contextmanager
def _attackers(name: str, directory: Path, server: Server, review_port: int) -> Iterator[None]:
    if name == QUIET:
        yield
        return
    ports = map(str, (server.port, server.grpc_port, review_port))
    command: list[str | Path] = [sys.executable, "-m", "bench.attackers", name, *ports]
    with Process(command, directory / "attackers.log", cwd=ROOT) as process:
        process.wait_for_line(BEGUN)
        yield
        if not process.running:
            raise RuntimeError(f"the attack ended: {process.output()}")


async def _repeat(
    seconds: float, goes_on: Callable[[], bool], every_s: float, work: Callable[[], Awaitable[None]]
) -> None:
    """Begin the work when it is due, or as soon as it was done the last time."""
    due, end = time.perf_counter(), time.perf_counter() + seconds
    while due < end and goes_on():
        await work()
        due = max(due + every_s, time.perf_counter())
        await asyncio.sleep(max(0.0, due - time.perf_counter()))


async def _timed(taken_ms: list[float], work: Awaitable[None]) -> None:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(FAILED_MS / 1_000):
            await work
        taken_ms.append((time.perf_counter() - began) * 1_000)
    except OSError:  # also where the time is over
        taken_ms.append(FAILED_MS)


async def _ask(port: int, request: bytes) -> None:
    """On a new connection, as kubelets do. Raises `OSError` unless the answer is a 200."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request)
        if not (await reader.read()).startswith(b"HTTP/1.1 200"):
            raise ConnectionError("refused")
    finally:
        writer.close()


async def _heartbeat(taken_ms: list[float], port: int, request: bytes) -> None:
    await _timed(taken_ms, _ask(port, request))


async def _weigh(server: Server, most_kb: list[float]) -> None:
    most_kb[0] = max(most_kb[0], server.resident_kb())


async def _enter(client: httpx.AsyncClient, number: int) -> bytes:
    """Let a member join, alone in its group. Returns its heartbeat."""
    group = f"/v1/namespaces/default/groups/honest-{number}"
    body = {"protocol_type": "worker", "protocols": [{"name": "p"}], "group_instance_id": "one"}
    joined = (await client.post(f"{group}/join", json=body)).raise_for_status().json()
    shown = {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
    (await client.post(f"{group}/sync", json=shown)).raise_for_status()
    heartbeat = json.dumps(shown)
    fields = {
        "Host": "localhost",
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": len(heartbeat),
        "Authorization": client.headers["authorization"],
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {group}/heartbeat HTTP/1.1\r\n{head}\r\n{heartbeat}".encode()
