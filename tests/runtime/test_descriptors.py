"""Connections on their way between two workers: each arrives once, or stays with its giver; no descriptor is left."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from rota.api.peer import descriptors
from rota.api.peer.descriptors import MOST_BYTES, GivingLink, TakingSocket
from tests.runtime.conftest import until


class Taker:
    """What has arrived at a `TakingSocket`."""

    def __init__(self, path: Path) -> None:
        self.taken: list[tuple[socket.socket, bytes]] = []
        self.has_room = True
        self.socket = TakingSocket(path, self._take, lambda: self.has_room)

    def _take(self, connection: socket.socket, received: bytes) -> None:
        self.taken.append((connection, received))

    @property
    def texts(self) -> list[bytes]:
        return [received for _, received in self.taken]


@contextmanager
def a_taker(path: Path) -> Iterator[Taker]:
    taker = Taker(path)
    taker.socket.start()
    try:
        yield taker
    finally:
        taker.socket.close()
        for connection, _ in taker.taken:
            connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


def given(link: GivingLink, received: bytes) -> tuple[bool, socket.socket]:
    """Give one end of a new connection away; whether it went, and the other end."""
    end, other = socket.socketpair()
    with closing(end):
        return link.give(end.fileno(), received), other


def goes(link: GivingLink, ends: ExitStack) -> bool:
    """Whether a new connection went, with a byte; its other end stays open until `ends`."""
    went, other = given(link, b"x")
    ends.callback(other.close)
    return went


async def test_a_connection_arrives_with_what_was_read_and_stays_open(path: Path) -> None:
    with a_taker(path) as taker, closing(GivingLink(path)) as link, ExitStack() as ends:
        for received in (b"first", b"x" * MOST_BYTES):
            went, other = given(link, received)
            ends.callback(other.close)
            assert went
            other.sendall(b"later")
            await until(lambda received=received: taker.texts[-1:] == [received])  # type: ignore[misc]
            connection, _ = taker.taken[-1]
            assert connection.recv(100) == b"later"
            assert not os.get_inheritable(connection.fileno())
            connection.sendall(b"answer")
            assert other.recv(100) == b"answer"


async def test_what_is_too_much_stays(path: Path) -> None:
    with a_taker(path), closing(GivingLink(path)) as link:
        went, other = given(link, b"x" * (MOST_BYTES + 1))
        other.close()

        assert not went


async def test_what_does_not_fit_stays_and_nothing_else_is_lost(path: Path) -> None:
    before = open_files()
    with a_taker(path) as taker, closing(GivingLink(path)) as link, ExitStack() as ends:
        went = 0
        while True:
            is_gone, other = given(link, b"%d" % went)
            ends.callback(other.close)
            if not is_gone:
                break
            went += 1
        assert other.recv(1) == b"", "the giver has closed it: it had stayed"
        assert went > 50
        await until(lambda: len(taker.taken) == went)
        again, other = given(link, b"again")
        ends.callback(other.close)

        assert again
        assert taker.texts == [b"%d" % number for number in range(went)]
    assert open_files() == before


async def test_a_silent_taker_gets_no_more_until_it_answers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "SILENT_S", 0.0)
    with a_taker(path) as taker, closing(GivingLink(path)) as link, ExitStack() as ends:
        # It has no turn of the event loop in between.
        silent = [goes(link, ends) for _ in range(3)]
        await until(lambda: len(taker.taken) == 1)
        monkeypatch.setattr(descriptors, "SILENT_S", 60.0)

        assert silent == [True, False, False]
        assert goes(link, ends)


async def test_a_taker_that_has_enough_gets_no_more_for_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_taker(path) as taker, closing(GivingLink(path)) as link, ExitStack() as ends:
        taker.has_room = False
        went = []
        for _ in range(3):
            went.append(goes(link, ends))
            await until(lambda: len(taker.taken) == 1)
        assert went == [True, False, False]

    monkeypatch.setattr(descriptors, "ENOUGH_S", 0.0)
    with a_taker(path) as taker, closing(GivingLink(path)) as link, ExitStack() as ends:
        taker.has_room = False
        for count in (1, 2):
            assert goes(link, ends)
            await until(lambda count=count: len(taker.taken) == count)  # type: ignore[misc]


async def test_a_giver_that_ends_loses_none(path: Path) -> None:
    with a_taker(path) as taker, ExitStack() as ends:
        link = GivingLink(path)
        _, other = given(link, b"0")
        ends.callback(other.close)
        await until(lambda: len(taker.taken) == 1)  # its answer is not read
        with link_that_reads_no_answers(link) as raw:
            for number in (1, 2):
                end, other = socket.socketpair()
                ends.callback(other.close)
                socket.send_fds(raw, [b"%d" % number], [end.fileno()])
                end.close()
        await until(lambda: len(taker.taken) == 3)

        assert taker.texts == [b"0", b"1", b"2"]


@contextmanager
def link_that_reads_no_answers(link: GivingLink) -> Iterator[socket.socket]:
    assert link._socket is not None
    yield link._socket
    link.close()


async def test_a_taker_that_stops_takes_what_was_sent_and_no_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "RECONNECT_S", 0.0)
    with closing(GivingLink(path)) as link, ExitStack() as ends:
        with a_taker(path) as taker:
            for number in range(100):
                went, other = given(link, b"%d" % number)
                ends.callback(other.close)
                assert went == (number < len(taker.texts) + 100)
            taker.socket.close()
            assert taker.texts == [b"%d" % number for number in range(100)]
            went, other = given(link, b"late")
            ends.callback(other.close)
            assert not went
        assert not path.exists()
        with a_taker(path) as taker:
            went, other = given(link, b"to the next one")
            ends.callback(other.close)
            assert went
            await until(lambda: taker.texts == [b"to the next one"])


async def test_the_connection_of_a_taker_that_dies_is_closed(path: Path) -> None:
    """It has read nothing, so the request had no effect."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen()
    with closing(GivingLink(path)) as link:
        went, other = given(link, b"x")
        listening.close()
        other.settimeout(60)

        assert went
        assert other.recv(1) == b""
        other.close()


async def test_what_is_no_connection_is_closed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with a_taker(path) as taker, closing(GivingLink(path)) as link:
        reading, writing = os.pipe()
        assert link.give(writing, b"x")
        os.close(writing)
        os.set_blocking(reading, False)
        await until(lambda: "is none" in caplog.text)

        assert os.read(reading, 1) == b"", "no writing end is left"
        os.close(reading)
        assert taker.taken == []


async def test_a_socket_that_was_left_behind_is_replaced(path: Path) -> None:
    left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.bind(str(path))
    left.close()
    with a_taker(path) as taker, closing(GivingLink(path)) as link:
        _, other = given(link, b"x")
        await until(lambda: taker.texts == [b"x"])
        other.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_where_no_socket_can_be_made_nothing_listens(tmp_path: Path) -> None:
    before = open_files()
    for path in (tmp_path / "missing" / "s", tmp_path / ("x" * 120)):
        with pytest.raises(OSError, match=r"."):
            TakingSocket(path, lambda *_: None, lambda: True).start()
        with closing(GivingLink(path)) as link:
            went, other = given(link, b"x")
            other.close()
            assert not went

    assert open_files() == before
    await asyncio.sleep(0)
