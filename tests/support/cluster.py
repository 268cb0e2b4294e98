"""Several replicas as real processes on one Postgres and one Valkey, over a network that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rota.core.replica.leases import preferred_owners
from tests.support.cluster_network import ProxiedNetwork
from tests.support.cluster_wiring import POSTGRES, REDIS, Network, Ports, ReplicaPorts
from tests.support.places import THIS_MACHINE, Place
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.processes import Process, Processes
from tests.support.valkey import ValkeyServer

NAMES = ("r1", "r2", "r3")
LEASE_MS = 2_000
"""Longer than a busy machine keeps a process waiting. How short it may be is measured in bench/."""
SHARD_COUNT = 24
"""So many that each of three replicas is due some."""
DEADLINE_S = 60.0
_POLL_S = 0.02
_HOST = THIS_MACHINE.address
_NOW_MS = "extract(epoch FROM clock_timestamp()) * 1000"
_LEASES = f"SELECT shard_id, address, epoch FROM rota.shards WHERE lease_until_ms > {_NOW_MS} ORDER BY shard_id"
_REGISTERED = f"SELECT replica_id, address FROM rota.replicas WHERE seen_until_ms > {_NOW_MS}"


class ReplicaProcess:
    """One `rota serve`, with addresses that stay the same across restarts."""

    def __init__(
        self,
        name: str,
        processes: Processes,
        ports: ReplicaPorts,
        options: tuple[str, ...],
        env: Mapping[str, str],
        place: Place,
    ) -> None:
        self.name = name
        self.port = ports.http
        self.url = f"http://{_HOST}:{ports.http}"
        self.grpc_address = f"{_HOST}:{ports.grpc}"
        self._processes = processes
        listening = {"--http": ports.http, "--grpc": ports.grpc, "--peer": ports.peer}
        self._options = (*options, *(f"{option}={place.address}:{port}" for option, port in listening.items()))
        self.env = env
        """Of the process that is started next."""
        self._place = place
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start without waiting for anything."""
        self._process = self._processes.rota("serve", *self._options, env=self.env, place=self._place)

    async def until_ready(self) -> None:
        """Return once it has its share of the shards."""
        await asyncio.to_thread(self.process.wait_for_url, f"{self.url}/readyz")

    async def terminate(self) -> None:
        """A graceful stop, to its end."""
        assert await asyncio.to_thread(self.process.terminate) == 0, self.process.output()

    def kill9(self) -> None:
        self.process.kill9()


class Cluster:
    """Started by `async with`. Postgres and Valkey belong to it, so that a test may stop them."""

    def __init__(
        self,
        processes: Processes,
        *,
        lease_ms: int = LEASE_MS,
        shard_count: int = SHARD_COUNT,
        names: tuple[str, ...] = NAMES,
        postgres_settings: Mapping[str, str] | None = None,
        network: Network | None = None,
        prepare: str = "",
        env: Mapping[str, Mapping[str, str]] | None = None,
        upgraded_by: Mapping[str, str] | None = None,
    ) -> None:
        """On a network of proxies where no other is given. A network is of one cluster.

        `prepare` is SQL to run in the database before any replica is connected; `env` is by replica;
        `upgraded_by` is that of the command which makes the schema.
        """
        self._processes = processes
        self._stack = ExitStack()
        self.lease_ms = lease_ms
        self.shard_count = shard_count
        self._prepare = prepare
        self._env = env or {}
        self._upgraded_by = upgraded_by
        self.network: Network = network or ProxiedNetwork()
        self.postgres = PostgresServer(durable=False, settings=postgres_settings, place=self.network.place(POSTGRES))
        self.valkey = ValkeyServer(place=self.network.place(REDIS))
        self._places = {name: self.network.place(name) for name in names}
        self._ports = Ports(
            self.postgres.port,
            self.valkey.port,
            {name: ReplicaPorts(free_port(), free_port(), free_port()) for name in names},
        )
        self.replicas: dict[str, ReplicaProcess] = {}

    async def __aenter__(self) -> Self:
        try:
            for part in (self.network.up(self._ports), self.postgres, self.valkey):
                self._stack.enter_context(part)
            self.dsn = self.postgres.create_database("rota")
            if self._prepare:
                self.postgres.execute(self._prepare, database="rota")
            upgrade = self._processes.rota("db", "upgrade", "--store", self.dsn, env=self._upgraded_by)
            assert await asyncio.to_thread(upgrade.wait_for_exit) == 0, upgrade.output()
            self.replicas = {name: self._replica(name) for name in self._places}
            for replica in self.replicas.values():
                replica.start()
            await self.until_settled()
        except BaseException:
            self._stack.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.network.heal()
        for replica in self.replicas.values():
            if replica.running:
                replica.kill9()
        self._stack.close()

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas.values()]

    @property
    def grpc_addresses(self) -> list[str]:
        return [replica.grpc_address for replica in self.replicas.values()]

    def verify(self) -> None:
        """Folding the whole journal gives the rows of the store."""
        done = self._processes.rota("db", "verify", "--store", self.dsn)
        assert done.wait_for_exit() == 0, done.output()
        assert "differences:  0" in done.output()

    # --- owners of shards ------------------------------------------------------------------------------

    def owners(self) -> dict[int, str]:
        """By shard, the replica with a lease that is not over, as Postgres judges it."""
        names = self._names()
        return {shard_id: names[address] for shard_id, address, _ in self._leases()}

    def epochs(self) -> dict[int, int]:
        return {shard_id: epoch for shard_id, _, epoch in self._leases()}

    def shards_of(self, name: str) -> list[int]:
        return [shard_id for shard_id, owner in self.owners().items() if owner == name]

    async def until_settled(self) -> None:
        """Every replica that runs is ready, and together they hold every shard."""
        up = {replica.name for replica in self.replicas.values() if replica.running}
        for name in sorted(up):
            await self.replicas[name].until_ready()

        # Each look is two programs, which take the time that a busy machine needs to settle.
        await self.until(lambda: self._is_settled(up), f"{sorted(up)} hold what is due to them", poll_s=0.1)

    def _is_settled(self, up: set[str]) -> bool:
        """Every shard is held by the replica that it is due to, and only running replicas are registered."""
        replica_ids = {row.split("|")[1]: row.split("|")[0] for row in self._rows(_REGISTERED)}
        if not replica_ids:  # Postgres was away, or its clock was set, for longer than a registration counts.
            return not up
        owners = self.owners()
        due = dict(enumerate(preferred_owners(replica_ids.values(), self.shard_count)))
        names = {self._names()[address]: replica_id for address, replica_id in replica_ids.items()}
        return set(names) == up and {shard_id: names.get(owner) for shard_id, owner in owners.items()} == due

    async def until_moved(self, name: str) -> None:
        """All shards are held by others than this one."""

        def moved() -> bool:
            owners = self.owners()
            return len(owners) == self.shard_count and name not in owners.values()

        await self.until(moved, f"the others hold all shards of {name}")

    async def until(self, condition: Callable[[], bool], what: str, *, poll_s: float = _POLL_S) -> None:
        """Look at it again and again, on a thread: clients and members go on meanwhile."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - no event for it
                    await asyncio.sleep(poll_s)
        except TimeoutError:
            raise AssertionError(f"not within {DEADLINE_S:g} s: {what}; owners: {self.owners()}") from None

    def _names(self) -> dict[str, str]:
        return {replica.url: replica.name for replica in self.replicas.values()}

    def _leases(self) -> list[tuple[int, str, int]]:
        split = (row.split("|") for row in self._rows(_LEASES))
        return [(int(shard_id), address, int(epoch)) for shard_id, address, epoch in split]

    def _rows(self, query: str) -> list[str]:
        return self.postgres.execute(query, database="rota").splitlines()

    def _replica(self, name: str) -> ReplicaProcess:
        wiring = self.network.wiring(name)
        options = (
            *("--store", self.dsn.replace(f"{_HOST}:{self.postgres.port}/", f"{wiring.postgres}/")),
            *("--redis", f"redis://{wiring.redis}/0"),
            *("--shard-count", str(self.shard_count), "--lease-ms", str(self.lease_ms)),
            *wiring.options,
        )
        env = {
            "ROTA_LIMITS__INITIAL_REBALANCE_DELAY_MS": "20",
            "ROTA_LOG_FORMAT": "text",
            **wiring.env,
            **self._env.get(name, {}),
        }
        return ReplicaProcess(name, self._processes, self._ports.replicas[name], options, env, self._places[name])
