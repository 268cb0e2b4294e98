"""The network of a cluster's replicas: namespaces of their own, on whose packets rules of nft decide.

Each replica, Postgres, Redis, and all clients together are a host each. Packets that are cut are dropped where they
would arrive, so that the sender repeats them, as with a broken cable. Tests and clients come in through a relay.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.cluster_wiring import POSTGRES, REDIS, Ports, Wiring
from tests.support.directories import make_server_directory, remove_server_directory
from tests.support.namespaces import Hosts
from tests.support.places import THIS_MACHINE, Place
from tests.support.processes import Process

CLIENTS = "clients"
_CHAIN = "inet faults input"
_NOT_A_RESET = "tcp flags & rst == 0"
_ROOT = Path(__file__).parents[2]


class NamespacedNetwork:
    """Of the replicas whose places were asked for."""

    def __init__(self) -> None:
        self._hosts = Hosts()
        self._clients = self._hosts[CLIENTS]
        self._ports: Ports | None = None
        self._hurt: set[str] = set()
        """Hosts where something is done to packets that arrive there."""
        self._secret_file = Path()

    def place(self, name: str) -> Place:
        return self._hosts[name]

    @contextmanager
    def up(self, ports: Ports) -> Iterator[None]:
        self._ports = ports
        with ExitStack() as stack:
            directory = make_server_directory("namespaced")
            stack.callback(remove_server_directory, directory)
            self._secret_file = directory / "peer-secret"
            self._secret_file.write_text("a secret of the replicas of this test\n")
            self._secret_file.chmod(0o600)
            stack.enter_context(self._hosts)
            for host in self._hosts.all():
                host.nft(
                    "add table inet faults",
                    f"add chain {_CHAIN} {{ type filter hook input priority 0; }}",
                )
            stack.enter_context(self._relay(ports, directory / "relay.log"))
            yield

    def wiring(self, name: str) -> Wiring:
        assert self._ports is not None, "the network is not up"
        return Wiring(
            postgres=f"{self._hosts[POSTGRES].address}:{self._ports.postgres}",
            redis=f"{self._hosts[REDIS].address}:{self._ports.redis}",
            options=(
                *("--peer-secret-file", str(self._secret_file), "--allow-anonymous"),
                *("--advertise", f"http://{THIS_MACHINE.address}:{self._ports.replicas[name].http}"),
            ),
        )

    # --- faults --------------------------------------------------------------------------------------

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between these two any more, and neither is notified."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_one_way(self, source: str, target: str) -> None:
        """What `source` sends does not arrive at `target`."""
        self._add(source, target, "counter drop")

    def isolate(self, name: str) -> None:
        """Cut a replica from all but its clients."""
        for other in self._hosts.all():
            if other.name not in (name, CLIENTS):
                self.cut(name, other.name)

    def refuse(self, one: str, other: str) -> None:
        """When one of these two sends to the other, it learns at once that there is no such connection."""
        for source, target in ((one, other), (other, one)):
            # A reset must arrive itself: otherwise neither end would be notified.
            self._add(source, target, f"{_NOT_A_RESET} counter reject with tcp reset")

    def lose(self, one: str, other: str, percent: int) -> None:
        """So many of the packets between these two do not arrive, any of them."""
        for source, target in ((one, other), (other, one)):
            self._add(source, target, f"numgen random mod 100 < {percent} counter drop")

    def heal(self) -> None:
        """Every packet arrives again."""
        for name in self._hurt:
            self._hosts[name].nft(f"flush chain {_CHAIN}")
        self._hurt.clear()

    def hit(self) -> int:
        """How many packets did not arrive since the network was healed."""
        chains = (self._hosts[name].nft(f"list chain {_CHAIN}") for name in self._hurt)
        return sum(int(packets) for chain in chains for packets in re.findall(r"counter packets (\d+)", chain))

    # --- inside --------------------------------------------------------------------------------------

    def _add(self, source: str, target: str, verdict: str) -> None:
        self._hurt.add(target)
        self._hosts[target].nft(f"add rule {_CHAIN} ip saddr {self._hosts[source].address} {verdict}")

    @contextmanager
    def _relay(self, ports: Ports, output_file: Path) -> Iterator[None]:
        """From each port of this machine to the same one of its host, as it is seen from the clients'."""
        ways = [(POSTGRES, ports.postgres), (REDIS, ports.redis)]
        ways += [(name, port) for name, each in ports.replicas.items() for port in (each.http, each.grpc)]
        with ExitStack() as ours:
            targets: dict[int, str] = {}
            for name, port in ways:
                listener = ours.enter_context(socket.create_server((THIS_MACHINE.address, port), backlog=1_000))
                targets[listener.fileno()] = f"{self._hosts[name].address}:{port}"
            process = Process(
                [
                    *(sys.executable, "-m", "tests.support.relay"),
                    *(f"{descriptor}={target}" for descriptor, target in targets.items()),
                ],
                output_file,
                cwd=_ROOT,
                place=self._clients,
                descriptors=tuple(targets),
            )
        with process:
            yield
