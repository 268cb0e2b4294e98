"""Workers of one supervisor hand connections over to each other, and what happens to those when one of them ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.processes.test_workers import ask, joined, serve, started
from tests.support.ports import free_port
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

CONNECTIONS = 24
GROUPS = [f"g{number}" for number in range(8)]


@pytest.fixture
def store(processes: Processes, postgres_dsn: str) -> str:
    assert processes.rota("db", "upgrade", "--store", postgres_dsn).wait_for_exit() == 0
    return postgres_dsn


class Line:
    """One connection to a port, with blocking calls. It has carried one call already, so the next one decides."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._received = b""
        self.begun = self.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def close(self) -> None:
        self._socket.close()

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> int:
        """The status of the next answer; 0 where the connection has ended before it, without a byte of it."""
        while b"\r\n\r\n" not in self._received:
            if not self._receive():
                assert not self._received, "an answer was cut"
                return 0
        head, _, rest = self._received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(rest) < length:
            assert self._receive(), "an answer was cut"
            rest = self._received[len(head) + 4 :]
        self._received = rest[length:]
        return int(head[9:12])

    def answer_or_end(self) -> int:
        """The same; 0 also where the connection was reset."""
        try:
            return self.answer()
        except ConnectionResetError:
            return 0

    def ask(self, data: bytes) -> int:
        """The status of the answer; 0 where the connection has ended instead."""
        try:
            self.say(data)
        except (ConnectionResetError, BrokenPipeError):
            return 0
        return self.answer_or_end()

    def _receive(self) -> bool:
        more = self._socket.recv(65_536)
        self._received += more
        return bool(more)


@contextmanager
def lines(port: int, count: int = CONNECTIONS) -> Iterator[list[Line]]:
    opened = [Line(port) for _ in range(count)]
    try:
        yield opened
    finally:
        for line in opened:
            line.close()


def post(group: str, call: str, document: dict[str, object]) -> bytes:
    body = json.dumps(document).encode()
    head = f"POST /v1/namespaces/default/groups/{group}/{call} HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def commit(member: dict[str, object], offset: int) -> dict[str, object]:
    return member | {"offsets": [{"topic": "t", "partition": 0, "offset": offset}]}


class Served:
    """Two workers with members in several groups, once both own some."""

    def __init__(self, processes: Processes, store: str, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.serving = serve(processes, store, self.port, "--workers", "2", *options)
        self.pids = started(self.serving, 2)
        self.serving.wait_until(lambda: len(set(self.owner_ports().values())) == 2, "both to own shards")
        self.beats = {group: joined(self.url, group) for group in GROUPS}

    def owner_ports(self) -> dict[str, int]:
        """The own port of each group's owner; 0 while it has none."""
        places = {group: ask(self.url, f"groups/{group}/coordinator").json() for group in GROUPS}
        return {group: place.get("worker_http_port", 0) for group, place in places.items()}

    def own_metric(self, port: int, name: str) -> float:
        page = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE))

    def total(self, name: str) -> float:
        return sum(self.own_metric(port, name) for port in set(self.owner_ports().values()))


HANDED_OVER, FORWARDED = "rota_connections_handed_over_total", "rota_forwarded_calls_total"


@pytest.mark.thorough
def test_calls_on_connections_of_one_group_are_not_forwarded(processes: Processes, store: str) -> None:
    served = Served(processes, store, "--lease-ms", "15000")
    handed_over, forwarded = served.total(HANDED_OVER), served.total(FORWARDED)
    statuses = []
    for group in GROUPS:
        member = served.beats[group]
        with lines(served.port) as opened:
            statuses += [line.ask(post(group, "heartbeat", member)) for line in opened]
            for line in opened:
                # Requests that are cut, and those that arrive together, on a connection that has moved.
                whole = post(group, "offsets", commit(member, 7)) + post(group, "heartbeat", member) * 2
                line.say(whole[:70])
                line.say(whole[70:])
            statuses += [line.answer() for line in opened for _ in range(3)]

    assert set(statuses) == {200}
    # Each went by chance to one of two workers: that half of them had to be handed over is nearly certain.
    assert served.total(HANDED_OVER) - handed_over > len(GROUPS) * CONNECTIONS / 4
    assert served.total(FORWARDED) == forwarded
    with lines(next(iter(served.owner_ports().values()))) as opened:
        others = {line.ask(post(group, "heartbeat", served.beats[group])) for line in opened for group in GROUPS}
    assert others == {200}
    assert served.total(FORWARDED) > forwarded, "a worker's own port is for all groups"
    assert served.serving.terminate() == 0


@pytest.mark.slow
def test_a_killed_owner_takes_connections_once_it_is_back(processes: Processes, store: str) -> None:
    served = Served(processes, store)
    group = GROUPS[0]
    member = served.beats[group]
    with lines(served.port) as opened:
        assert {line.ask(post(group, "heartbeat", member)) for line in opened} == {200}
        before = [len(os.listdir(f"/proc/{pid}/fd")) for pid in served.pids]
        owner = max(served.pids, key=lambda pid: len(os.listdir(f"/proc/{pid}/fd")))
        assert max(before) - min(before) >= CONNECTIONS / 2

        for line in opened:
            line.say(post(group, "offsets", commit(member, 3))[:100])
        os.kill(owner, signal.SIGKILL)

        assert {line.answer_or_end() for line in opened} == {0}
    started(served.serving, 3)
    with lines(served.port) as opened:
        answers = {line.ask(post(group, "offsets", commit(member, 4))) for line in opened}
        assert answers <= {200, 503}

    def is_handed_over() -> bool:
        with lines(served.port, 8) as opened:
            return {line.ask(post(group, "heartbeat", member)) for line in opened for _ in range(2)} == {200}

    served.serving.wait_until(is_handed_over, "heartbeats that are answered")
    assert served.serving.terminate() == 0


@pytest.mark.slow
def test_workers_that_stop_cut_no_answer(processes: Processes, store: str) -> None:
    served = Served(processes, store)
    ended, statuses = False, set()
    rounds = 0
    while not ended:
        group = GROUPS[rounds % len(GROUPS)]
        try:
            with lines(served.port, 4) as opened:
                began = [line for line in opened if line.begun]
                statuses |= {line.ask(post(group, "offsets", commit(served.beats[group], rounds))) for line in began}
        except ConnectionRefusedError:
            ended = True
        rounds += 1
        if rounds == 20:
            served.serving.send(signal.SIGTERM)

    assert served.serving.wait_for_exit() == 0
    # 421 where the shard was given up already, and its next owner is not known.
    assert statuses <= {0, 200, 421, 503}
    assert {0, 200} & statuses
