"""What the guard costs: heartbeats over HTTP with a token, rules and a quota, beside the same server without them."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench import load
from bench.figures import Effort, Figure, transposed
from bench.load import Plan
from bench.members import NAMESPACE, Crowd
from bench.over_http import _batch, _disperse, _heartbeats, _stable_crowds
from bench.servers import Server, rota_server
from rota.access.actions import ROLES
from rota.access.rules import Rule
from rota.access.tokens import RANDOM_BYTES, TokenRecord, mint, parse
from rota.server.access.token_files import write_tokens

CONNECTIONS = 64
SECONDS = 3.0
FLOOR = "the same without --access-file"
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
    """One heartbeat a request, and 50, each with the API token of the member's caller."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name:
        directory = Path(name)
        token = _set_up(directory)
        guard = ("--access-file", str(directory / "access.toml"), "--access-tokens-file", str(directory / "tokens"))
        with (
            rota_server(directory, f"sqlite:///{directory / 'guarded.db'}", *guard) as guarded,
            rota_server(directory, f"sqlite:///{directory / 'open.db'}") as plain,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            ours = runner.run(_stable_crowds(guarded.port, token))
            theirs = runner.run(_stable_crowds(plain.port))
            figures = []
            for called, members in (("one a request", 1), ("50 a request", 50)):
                figures += _compare(
                    effort, called, guarded, _requests(ours, members), plain, _requests(theirs, members), members
                )
            runner.run(_disperse(ours))
            runner.run(_disperse(theirs))
    return figures


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


def _compare(
    effort: Effort,
    name: str,
    guarded: Server,
    with_token: Sequence[str],
    plain: Server,
    without: Sequence[str],
    members: int,
) -> list[Figure]:
    pairs = []
    for _ in range(effort.repeats):
        below = _cost_ms(plain, without, members, SECONDS * effort.scale)
        pairs.append((_cost_ms(guarded, with_token, members, SECONDS * effort.scale), below))
    cost, floor = transposed(pairs)
    return [Figure("guarded", f"server CPU of 1,000 guarded heartbeats, {name}", "ms", cost, FLOOR, floor)]


def _cost_ms(server: Server, requests: Sequence[str], members: int, seconds: float) -> float:
    """Milliseconds of the server's CPU for 1,000 heartbeats."""
    before_ms = server.cpu_ms()
    outcome = load.run(Plan(server.port, tuple(requests), CONNECTIONS, 1, seconds))
    return (server.cpu_ms() - before_ms) / (outcome.answered * members) * 1_000
