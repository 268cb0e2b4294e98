"""Each kind of holder keeps its share through the failures of `docs/explanation/failures.md`, with default times.

There is no Redis, and no time is set: `tests/unit/test_survival.py` adds the default times up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

import rota
from rota.protocol.defaults import LEASE_MS, SESSION_TIMEOUT_MS
from tests.processes.server import Server
from tests.support.link import Link
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.alone]

PARTITIONS = 2
SILENCE_S = 6.0
RESTART_S = 6.0
"""The longest restart of which the page says that every holder survives it."""
DEADLINE_S = 60.0
STORES = ("sqlite", "postgres")
COMMANDS = {
    "rota lead": ("lead", "run-lead"),
    "rota hold": ("hold", "run-hold", "--permits", "1"),
    "rota work": ("work", "run-work", "--topic", "docs"),
}
RUN = ("sh", "-c", "echo started; exec sleep 1000")


class Holders:
    """Shares of the SDK and commands that run, of which none may end."""

    def __init__(self) -> None:
        self.shares: list[Any] = []
        """A term, a permit, and the partitions of a pool, in the order in which they were granted."""
        self.commands: dict[str, Process] = {}
        self.sidecar_url = f"http://127.0.0.1:{free_port()}"
        self.sidecar_token = 0

    async def work(self, shard: rota.Shard) -> None:
        self.shares.append(shard)
        await shard.stopping.wait()

    def start_commands(self, processes: Processes, url: str) -> None:
        env = {"ROTA_URL": url}
        self.commands = {name: processes.rota(*arguments, "--", *RUN, env=env) for name, arguments in COMMANDS.items()}
        listening = self.sidecar_url.removeprefix("http://")
        options = ("--lead", "run-sidecar", "--http", listening, "--probes", "off")
        sidecar = processes.rota("sidecar", *options, env=env)
        for command in self.commands.values():
            command.wait_for_line("^started$")
        sidecar.wait_for_url(f"{self.sidecar_url}/leader")
        self.sidecar_token = self.token_of_sidecar()

    def token_of_sidecar(self) -> int:
        status = httpx.get(f"{self.sidecar_url}/leader", trust_env=False).raise_for_status().json()
        token: int = status["fencing_token"]
        return token

    async def outlive_a_session(self) -> None:
        """A session after the failure, each share was renewed, and neither it nor a command has ended meanwhile."""
        loop = asyncio.get_running_loop()
        over_at = loop.time() + SESSION_TIMEOUT_MS / 1_000
        await until(lambda: self.lost() or loop.time() > over_at, "the session after the failure")
        assert not self.lost()
        assert len(self.shares) == 2 + PARTITIONS, "a share was granted anew"
        assert all(share.valid_until > over_at for share in self.shares), "a share was not renewed"
        assert await asyncio.to_thread(self.token_of_sidecar) == self.sidecar_token

    def lost(self) -> list[str]:
        lost = [f"{share}" for share in self.shares if share.valid_until is None]
        return lost + [
            f"{name}: {process.output()}"
            for name, process in self.commands.items()
            if not process.running or process.output().count("started") != 1
        ]


async def until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}") from None


@asynccontextmanager
async def holding(processes: Processes, urls: list[str], url: str) -> AsyncIterator[Holders]:
    """A holder of each kind: those of the SDK at `urls`, and the commands at `url`."""
    holders = Holders()
    async with rota.connect(urls) as client:
        await client.put_topic("docs", PARTITIONS)
        async with (
            client.leader("term") as election,
            client.permits("permit", 1) as permit,
            client.worker_pool("pool", "docs", holders.work),
        ):
            holders.shares += [await anext(election.terms()), permit]
            await until(lambda: len(holders.shares) == 2 + PARTITIONS, "the shares of the pool")
            await asyncio.to_thread(holders.start_commands, processes, url)
            yield holders


async def test_a_killed_owner_ends_no_share(processes: Processes, postgres_dsn: str) -> None:
    upgrade(processes, postgres_dsn)
    other, owner = (Server(processes, postgres_dsn, "--shard-count", "1", lease_ms=LEASE_MS) for _ in range(2))
    for server in (other, owner):
        await asyncio.to_thread(server.start_and_wait)
    if "shard loaded" not in owner.process.output():
        owner, other = other, owner

    async with holding(processes, [owner.url, other.url], other.url) as holders:
        owner.process.kill9()

        await holders.outlive_a_session()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_a_restart_of_the_only_server_ends_no_share(
    processes: Processes, request: pytest.FixtureRequest, tmp_path: Path, store: str, *, killed: bool
) -> None:
    server = a_server(processes, request, tmp_path, store)

    async with holding(processes, [server.url], server.url) as holders:
        began_at = monotonic()
        if killed:
            server.process.kill9()
        else:
            await asyncio.to_thread(server.process.terminate)
        await asyncio.to_thread(server.start_and_wait)
        if (took_s := monotonic() - began_at) > RESTART_S:
            pytest.skip(
                f"the machine is too busy: the restart took {took_s:.1f} s, and commands survive {RESTART_S:g} s"
            )

        await holders.outlive_a_session()


@pytest.mark.parametrize("scheme", ["http", "grpc", "grpc+stream"])
async def test_a_silence_of_the_path_ends_no_share(
    processes: Processes, request: pytest.FixtureRequest, tmp_path: Path, scheme: str
) -> None:
    grpc_port = free_port()
    server = a_server(processes, request, tmp_path, "sqlite", "--grpc", f"127.0.0.1:{grpc_port}")
    async with Link(server.port if scheme == "http" else grpc_port) as link:
        url = f"{scheme}://127.0.0.1:{link.port}"
        async with holding(processes, [url], url) as holders:
            link.cut()
            asyncio.get_running_loop().call_later(SILENCE_S, link.heal)

            await holders.outlive_a_session()


def a_server(processes: Processes, request: pytest.FixtureRequest, tmp_path: Path, store: str, *options: str) -> Server:
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    if store == "postgres":
        url = request.getfixturevalue("postgres_dsn")
        upgrade(processes, url)
    server = Server(processes, url, *options, lease_ms=LEASE_MS)
    server.start_and_wait()
    return server


def upgrade(processes: Processes, store: str) -> None:
    assert processes.rota("db", "upgrade", "--store", store).wait_for_exit() == 0
