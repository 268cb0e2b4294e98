"""The samples of deploy/proxy as they are, but for addresses, running in front of a server of the test."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.support.debian_package import program
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

SAMPLES = Path(__file__).parents[2] / "deploy" / "proxy"


@dataclass(frozen=True, slots=True)
class Kind:
    """A proxy: its sample, how it is started on a configuration, and what its listeners look like."""

    sample: str
    command: Callable[[Path, Path], list[str | Path]]
    listener: str


def _nginx(configuration: Path, folder: Path) -> list[str | Path]:
    # Its workers would otherwise run as a user that may not enter the folder of a test.
    as_us = "user root; " if os.geteuid() == 0 else ""
    return ["-e", "stderr", "-p", folder, "-c", configuration, "-g", f"daemon off; {as_us}"]


def _caddy(configuration: Path, _folder: Path) -> list[str | Path]:
    # In the sample it listens everywhere.
    configuration.write_text(configuration.read_text().replace("admin off", "admin off\n\tdefault_bind 127.0.0.1"))
    return ["run", "--adapter", "caddyfile", "--config", configuration]


def _haproxy(configuration: Path, _folder: Path) -> list[str | Path]:
    # It takes no more files than the tests may open.
    configuration.write_text(configuration.read_text().replace("maxconn 20000", "maxconn 100"))
    return ["-db", "-f", configuration]


KINDS = {
    "nginx": Kind("nginx.conf", _nginx, r"listen {port}\b"),
    "caddy": Kind("Caddyfile", _caddy, r":{port}(?= \{{)"),
    "haproxy": Kind("haproxy.cfg", _haproxy, r"bind :{port}\b"),
}


class Proxy:
    """A proxy that runs, in front of one server or several.

    `edit` changes the sample before that, for tests of what a line of it is for.
    """

    def __init__(
        self,
        name: str,
        processes: Processes,
        folder: Path,
        *,
        http: int | Sequence[int],
        grpc: int | Sequence[int],
        edit: Callable[[str], str] = str,
    ) -> None:
        self.http, self.grpc = free_port(), free_port()
        kind = KINDS[name]
        text = edit((SAMPLES / kind.sample).read_text())
        text = re.sub(r"rota-(\d):8080", partial(_replica, http), text)
        text = re.sub(r"rota-(\d):9090", partial(_replica, grpc), text)
        text = text.replace("check-proto h1 port 8080", f"check-proto h1 port {http}").replace("/tmp/", f"{folder}/")
        for inside, outside in ((8080, self.http), (9090, self.grpc)):
            text = re.sub(kind.listener.format(port=inside), partial(_moved, inside, outside), text)
        configuration = folder / kind.sample
        configuration.write_text(text)
        command, env = program(name)
        home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        self.process: Process = processes.start(command, *kind.command(configuration, folder), env={**env, **home})
        self.process.wait_until(lambda: _listens(self.http) and _listens(self.grpc), "a proxy that listens")


def _replica(ports: int | Sequence[int], named: re.Match[str]) -> str:
    """Where the sample's replicas are in this test: `rota-1` and so on, all of them the same one if there is one."""
    each = [ports] if isinstance(ports, int) else ports
    return f"127.0.0.1:{each[(int(named[1]) - 1) % len(each)]}"


def _moved(inside: int, outside: int, listener: re.Match[str]) -> str:
    """The same listener on another port, and on loopback where it says no more than the port: `bind :8080`."""
    return re.sub(rf"(?<= ):?{inside}", f"127.0.0.1:{outside}", listener[0]).replace(f":{inside}", f":{outside}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
