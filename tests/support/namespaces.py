"""Hosts in network namespaces, all on one bridge: each has its own packets, addresses and rules of nft.

They need root, or a kernel that lets users have namespaces of their own. None of them has a name: it is there for as
long as a process keeps it, so that a test run that is killed leaves nothing behind.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support.debian_package import program
from tests.support.directories import make_server_directory, remove_server_directory
from tests.support.processes import Process

_KEEPER = ("sh", "-c", "echo kept; exec sleep infinity")
_NETWORK = "10.77.0"
_BRIDGE = "bridge"
_DEADLINE_S = 30


def is_root() -> bool:
    return os.geteuid() == 0


@functools.cache
def why_not() -> str:
    """What this machine does not allow of all that is needed here, as it says so itself; empty if nothing."""
    if sys.platform != "linux":
        return f"{sys.platform} has no network namespaces"
    ip, nft = _program("ip"), _program("nft")
    script = '"$0" link add name probe type bridge && "$1" add table inet probe'
    command: list[str | Path] = [*_new_namespace(), "sh", "-c", script, ip[0], nft[0]]
    env = {**os.environ, **ip[1], **nft[1]}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=_DEADLINE_S)
    return "" if done.returncode == 0 else done.stderr.strip() or f"unshare ended with {done.returncode}"


def skip_without_namespaces() -> None:
    """Where there are none the summary of the run says why; links are cut all the same, by proxies."""
    if reason := why_not():
        pytest.skip(f"packets cannot be lost here, links are cut by proxies only, in test_networks_fail.py: {reason}")


class Host:
    """One network namespace. Servers run there as the user that they are given, or as the tests' user."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self._keeper: Process | None = None

    @property
    def pid(self) -> int:
        """Of the process by which the namespace is found."""
        assert self._keeper is not None, f"the host {self.name} was never started"
        return self._keeper.pid

    def entrance(self, user: int | None) -> Sequence[str]:
        if is_root():
            leave_root = () if user is None else (f"--setuid={user}", f"--setgid={user}")
            return (*self._way_in(), *leave_root, "--")
        # In the namespaces we are root, which a Postgres refuses to be: there is a way back.
        return (*self._way_in(), "--", "unshare", "--user", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}")

    def keep(self, command: Sequence[str], output_file: Path) -> Process:
        """Have the namespace that the command makes."""
        self._keeper = Process([*command, *_KEEPER], output_file)
        self._keeper.wait_for_line("^kept$")
        return self._keeper

    def inner_namespace(self) -> Sequence[str]:
        """What makes another one, of the same owner."""
        return (*self._way_in(), "--", "unshare", "--net")

    def ip(self, *lines: str) -> None:
        """Commands for its links and addresses."""
        self._run("ip", "-batch", "-", lines=lines)

    def nft(self, *lines: str) -> str:
        """Commands for its rules; all of them hold from one moment to the next. Returns what they print."""
        return self._run("nft", "-f", "-", lines=lines)

    def _run(self, name: str, *options: str, lines: Sequence[str]) -> str:
        path, libraries = _program(name)
        done = subprocess.run(
            [*self._way_in(), "--", path, *options],
            input="".join(f"{line}\n" for line in lines),
            env={**os.environ, **libraries},
            capture_output=True,
            text=True,
            check=False,
            timeout=_DEADLINE_S,
        )
        assert done.returncode == 0, f"{name} on {self.name}: {lines}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _way_in(self) -> Sequence[str]:
        network = ("nsenter", f"--net=/proc/{self.pid}/ns/net")
        return network if is_root() else (*network, f"--user=/proc/{self.pid}/ns/user", "--preserve-credentials")


class Hosts:
    """Hosts by name, each with an address on the bridge between them. They are there in the `with` block."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._middle = Host("the bridge", "")
        self._stack = ExitStack()

    def __getitem__(self, name: str) -> Host:
        """The host of that name, which is added if there is none yet: before the block."""
        if name not in self._hosts:
            self._hosts[name] = Host(name, f"{_NETWORK}.{len(self._hosts) + 1}")
        return self._hosts[name]

    def all(self) -> list[Host]:
        return list(self._hosts.values())

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        directory = make_server_directory("namespaces")
        self._stack.callback(remove_server_directory, directory)
        self._stack.enter_context(self._middle.keep(_new_namespace(), directory / "bridge.log"))
        self._middle.ip(f"link add name {_BRIDGE} type bridge", f"link set {_BRIDGE} up")
        for number, host in enumerate(self._hosts.values()):
            command = self._middle.inner_namespace()
            self._stack.enter_context(host.keep(command, directory / f"{host.name}.log"))
            self._middle.ip(
                f"link add name port{number} type veth peer name eth0 netns {host.pid}",
                f"link set port{number} master {_BRIDGE} up",
            )
            host.ip(f"addr add {host.address}/24 dev eth0", "link set eth0 up", "link set lo up")


def _new_namespace() -> Sequence[str]:
    return ("unshare", "--net") if is_root() else ("unshare", "--user", "--map-root-user", "--net")


@functools.cache
def _program(name: str) -> tuple[Path, Mapping[str, str]]:
    return program(name)
