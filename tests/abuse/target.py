"""The server under attack, seen from outside: its answers, its memory, and whether other callers suffer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.abuse.attackers import Line
from tests.support.ports import free_port
from tests.support.processes import Process, Processes, rota_command

DEADLINE_S = 60.0
BYSTANDER = "/v1/namespaces/default/groups/bystander"
MIB = 1024 * 1024


class Target:
    """`rota serve` over HTTP and gRPC on a SQLite file, with a bystander: a leader that must not lose its term."""

    def __init__(
        self, processes: Processes, folder: Path, *prefix: str, store: str | None = None, options: Sequence[str] = ()
    ) -> None:
        """`prefix` starts the command; `store` is on Postgres, and `options` are further ones of `rota serve`."""
        self.port, self.grpc_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = (
            *(
                "serve",
                "--store",
                store or f"sqlite:///{folder / 'rota.db'}",
                "--shard-count",
                "4",
                "--log-format",
                "text",
            ),
            *("--http", f"127.0.0.1:{self.port}", "--grpc", f"127.0.0.1:{self.grpc_port}"),
            # Where other tests run beside this one, the server may not come to renew a shorter one in time.
            *("--lease-ms", "60000"),
            *options,
        )
        # Here all callers come from one address, and thousands of them connect before the first one asks.
        budgets = {f"ROTA_BUDGETS__SILENT_CONNECTIONS__{share}": "20000" for share in ("PER_SOURCE", "IN_ALL")}
        self.process: Process = processes.start(*prefix, rota_command(), *command, env=budgets)
        self.process.wait_for_url(f"{self.url}/readyz")
        lead = ("lead", "bystander", "--url", self.url, "--session-timeout-ms", "60000", "--", "sleep", "3600")
        self.bystander = processes.rota(*lead)
        self.bystander.wait_for_line("elected")
        self.client = httpx.AsyncClient(base_url=self.url, timeout=DEADLINE_S, trust_env=False)

    @property
    def resident_mib(self) -> float:
        """Memory of the server's process."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / MIB

    def holds(self, opened: Sequence[Line]) -> int:
        """How many of these connections the server has not closed."""
        theirs = {line.transport.get_extra_info("sockname") for line in opened}
        return sum(each.raddr in theirs for each in psutil.Process(self.process.pid).net_connections("tcp"))

    @asynccontextmanager
    async def unharmed(self, most_mib: float, what: str) -> AsyncIterator[None]:
        """Check around an attack: the server answers, the bystander leads on, memory grew by `most_mib` at most.

        The figures are printed, for `pytest -s` and for reports.
        """
        term = await self._term()
        before = self._forget_the_peak()
        yield
        grown = self._peak_mib() - before
        print(f"{what}: {before:.0f} MiB before, at most {grown:+.0f} MiB, {self.resident_mib - before:+.0f} MiB after")
        assert self.process.running
        assert await self._term() == term
        assert self.bystander.running
        await self.still_serves()
        assert grown <= most_mib

    async def still_serves(self) -> None:
        """A newcomer gets through a whole rebalance."""
        group = "/v1/namespaces/default/groups/newcomers"
        body = {"protocol_type": "worker", "protocols": [{"name": "p"}], "group_instance_id": "one"}
        joined = await self.ask("POST", f"{group}/join", body)
        ids = {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
        await self.ask("POST", f"{group}/sync", ids)
        await self.ask("POST", f"{group}/heartbeat", ids)

    async def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """The document of a 200. As any client, it tries again where the answer asks for that.

        A replica that serves thousands of calls on a busy machine may renew a lease too late, and claims it anew.
        """
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = await self.client.request(method, path, json=body)
                if answer.status_code != 503:
                    return answer.raise_for_status().json()
                await asyncio.sleep(0.1)

    async def metric(self, pattern: str) -> float:
        """The sum of the samples with matching name and labels."""
        lines = (await self.client.get("/metrics")).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(pattern, line))

    async def until_metric(self, pattern: str, wanted: float) -> None:
        """Return once the sum is as wanted."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if await self.metric(pattern) == wanted:
                    return
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        await self.client.aclose()

    def _forget_the_peak(self) -> float:
        """Count the most memory from here on, which is returned."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self._peak_mib()

    def _peak_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024

    async def _term(self) -> tuple[str, int]:
        leader = await self.ask("GET", f"{BYSTANDER}/leader")
        return leader["leader_id"], leader["generation_id"]
