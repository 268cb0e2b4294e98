"""What the guard costs: heartbeats over HTTP with a token, rules and a quota, beside the same server without them."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench import load
from bench.figures import Effort, Figure, transposed
from bench.load import Plan
from bench.members import Crowd
from bench.over_http import MEMBERS_OF_A_GROUP, _batch, _disperse, _heartbeats, _stable_crowds
from bench.servers import Server, rota_server
from bench.setting import NAMESPACE
from rota.core.access.rules import ROLES, Rule
from rota.core.access.tokens import RANDOM_BYTES, TokenRecord, mint, parse
from rota.server.access.tokens import write_tokens

CONNECTIONS = 64
SECONDS = 3.0
FLOOR = "the same without --access-file"
CALLED = {1: "one a request", MEMBERS_OF_A_GROUP: f"{MEMBERS_OF_A_GROUP} a request"}
"""By heartbeats a request."""
ACCESS = f"""
[[rules]]
name = "closed groups"
subjects = ["token:*"]
actions = ["*"]
namespaces = ["{NAMESPACE}"]
groups = ["closed*"]
effect = "deny"

[[quotas]]
namespace = "{NAMESPACE}"
requests_per_s = 1000000
"""


def run(effort: Effort) -> list[Figure]:
    """One heartbeat a request, and 50, each with the API token of the member's caller.

    Each sample has processes of its own, and the two begin by turns: two equal servers differ by up to a tenth.
    """
    pairs: dict[int, list[tuple[float, float]]] = {members: [] for members in CALLED}
    for number in range(effort.repeats):
        with tempfile.TemporaryDirectory(prefix="rota-bench-") as name:
            taken = _sample(Path(name), SECONDS * effort.scale, guarded_first=number % 2 == 0)
        for members, pair in taken.items():
            pairs[members].append(pair)
    return [figure for members, taken_pairs in pairs.items() for figure in _figures(CALLED[members], taken_pairs)]


def _figures(called: str, pairs: Sequence[tuple[float, float]]) -> list[Figure]:
    cost, floor = transposed(pairs)
    name = f"server CPU of 1,000 guarded heartbeats, {called}"
    return [Figure("guarded", name, "ms", cost, FLOOR, floor)]


def _sample(directory: Path, seconds: float, *, guarded_first: bool) -> dict[int, tuple[float, float]]:
    """By heartbeats a request: milliseconds for 1,000 with the guard and without."""
    token = _set_up(directory)
    guard = ("--access-file", str(directory / "access.toml"), "--access-tokens-file", str(directory / "tokens"))
    kinds = {"guarded": (guard, token), "open": ((), "")}
    order = sorted(kinds, reverse=not guarded_first)
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        servers, crowds = {}, {}
        for kind in order:
            options, shown = kinds[kind]
            servers[kind] = stack.enter_context(rota_server(directory, f"sqlite:///{directory / kind}.db", *options))
            crowds[kind] = runner.run(_stable_crowds(servers[kind].port, shown))
        costs = {
            (kind, members): _cost_ms(servers[kind], _requests(crowds[kind], members), members, seconds)
            for members in CALLED
            for kind in order
        }
        for kind in order:
            runner.run(_disperse(crowds[kind]))
    return {members: (costs["guarded", members], costs["open", members]) for members in CALLED}


def _set_up(directory: Path) -> str:
    (directory / "access.toml").write_text(ACCESS)
    token = mint(secrets.token_bytes(RANDOM_BYTES))
    presented = parse(token)
    scope = Rule("the bench's", ("token:bench",), ROLES["member"], (NAMESPACE,))
    write_tokens(directory / "tokens", [TokenRecord(presented.token_id, "bench", presented.digest, (scope,))])
    return token


def _requests(crowds: Sequence[Crowd], members: int) -> list[str]:
    if members == 1:
        return [request for crowd in crowds for request in _heartbeats(crowd)]
    return [_batch(crowd) for crowd in crowds]


def _cost_ms(server: Server, requests: Sequence[str], members: int, seconds: float) -> float:
    """Milliseconds of the server's CPU for 1,000 heartbeats."""
    before_ms = server.cpu_ms()
    outcome = load.run(Plan(server.port, tuple(requests), CONNECTIONS, 1, seconds))
    return (server.cpu_ms() - before_ms) / (outcome.answered * members) * 1_000
