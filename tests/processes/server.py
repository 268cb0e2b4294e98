"""A server process on one store and one port, which can be killed and started again."""

from __future__ import annotations

from tests.support.ports import free_port
from tests.support.processes import Process, Processes

SHARD_COUNT = 4


class Server:
    """`rota serve` on a store, with few shards and a short initial delay; its URL stays the same across restarts.

    With a short lease a restart has less to wait for, but a busy machine may lose it, and then answers 503 for a while.
    """

    def __init__(
        self, processes: Processes, store_url: str, *options: str, lease_ms: int = 5_000, group_max_size: int = 10_000
    ) -> None:
        self.store_url = store_url
        self._group_max_size = group_max_size
        self._options = (*options, "--lease-ms", str(lease_ms))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._processes = processes
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "the server was never started"
        return self._process

    def start(self) -> Process:
        """Start without waiting for anything."""
        options = ("--store", self.store_url, "--http", f"127.0.0.1:{self.port}", "--shard-count", str(SHARD_COUNT))
        limits = {"initial_rebalance_delay_ms": 20, "group_max_size": self._group_max_size}
        environment = {f"ROTA_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
        environment["ROTA_LOG_FORMAT"] = "text"
        self._process = self._processes.rota("serve", *options, *self._options, env=environment)
        return self._process

    def start_and_wait(self) -> None:
        """Start, and return once it says that it is ready."""
        self.start().wait_for_url(f"{self.url}/readyz")
