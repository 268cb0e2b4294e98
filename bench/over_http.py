"""Heartbeats over HTTP: how many a second, and what 1,000 cost the server, beside uvicorn without us."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench import load
from bench.connection import request_bytes
from bench.figures import Effort, Figure, transposed
from bench.load import FRESH, Plan
from bench.members import Crowd
from bench.servers import Server, bare_server, rota_server

GROUPS = 10
MEMBERS_OF_A_GROUP = 50
CONNECTIONS = 64
SECONDS = 3.0
CPU_AIM_MS = 15.0
"""Three quarters of what bare uvicorn takes on the machine that the aims are for."""
FLOOR = "bare uvicorn, same requests"


def run(effort: Effort) -> list[Figure]:
    """One heartbeat a request from 64 connections, one by one and 16 in flight; then 50 heartbeats a request."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name:
        directory = Path(name)
        with rota_server(directory, f"sqlite:///{directory / 'rota.db'}") as ours, bare_server(directory) as bare:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                crowds = runner.run(_stable_crowds(ours.port))
                singles = [request for crowd in crowds for request in _heartbeats(crowd)]
                batches = [_batch(crowd) for crowd in crowds]
                figures = _compare(effort, "one a request", ours, bare, singles, pipeline=1)
                fresh = [
                    request.replace("Content-Type:", f"X-Request-Id: {FRESH}\r\nContent-Type:") for request in singles
                ]
                figures += _compare(effort, "one a request, bytes that change", ours, bare, fresh, pipeline=1)
                figures += _compare(effort, "one a request, 16 in flight", ours, bare, singles, pipeline=16)
                figures += _compare(effort, "50 a request", ours, bare, batches, members=MEMBERS_OF_A_GROUP)
                runner.run(_disperse(crowds))
    return figures


def _compare(
    effort: Effort,
    name: str,
    ours: Server,
    bare: Server,
    requests: Sequence[str],
    *,
    pipeline: int = 1,
    members: int = 1,
) -> list[Figure]:
    """Rate and cost in heartbeats; `members` of them are in one request."""
    pairs = []
    for _ in range(effort.repeats):
        below = _load(bare, requests, pipeline, members, SECONDS * effort.scale)
        pairs.append((*_load(ours, requests, pipeline, members, SECONDS * effort.scale), *below))
    rate, cost, floor_rate, floor_cost = transposed(pairs)
    aim = CPU_AIM_MS if members == 1 else None
    return [
        Figure("http", f"heartbeats, {name}", "heartbeats/s", rate, FLOOR, floor_rate),
        Figure("http", f"server CPU of 1,000 heartbeats, {name}", "ms", cost, FLOOR, floor_cost, aim),
    ]


def _load(server: Server, requests: Sequence[str], pipeline: int, members: int, seconds: float) -> tuple[float, float]:
    """Heartbeats a second, and milliseconds of the server's CPU for 1,000 of them."""
    before_ms = server.cpu_ms()
    outcome = load.run(Plan(server.port, tuple(requests), CONNECTIONS, pipeline, seconds))
    heartbeats = outcome.answered * members
    return heartbeats / outcome.seconds, (server.cpu_ms() - before_ms) / heartbeats * 1_000


async def _stable_crowds(port: int, token: str = "") -> list[Crowd]:
    """Members that have their share, and do not heartbeat by themselves any more."""
    crowds = [Crowd(f"heartbeats-{number}", port, token) for number in range(GROUPS)]
    for crowd in crowds:
        await crowd.grow(MEMBERS_OF_A_GROUP)
    await asyncio.gather(*(member.enter() for crowd in crowds for member in crowd.members))
    await asyncio.gather(*(crowd.all_hold_one_generation() for crowd in crowds))
    return crowds


async def _disperse(crowds: Sequence[Crowd]) -> None:
    for crowd in crowds:
        await crowd.disperse()


def _heartbeats(crowd: Crowd) -> list[str]:
    path = f"{crowd.path}/heartbeat"
    return [
        request_bytes(
            path, {"member_id": member.member_id, "generation_id": member.generation_id}, crowd.token
        ).decode()
        for member in crowd.members
    ]


def _batch(crowd: Crowd) -> str:
    members = [{"member_id": member.member_id, "generation_id": member.generation_id} for member in crowd.members]
    return request_bytes(f"{crowd.path}/heartbeat", {"members": members}, crowd.token).decode()
