"""Ways out of the sync SDK, against a real server: a thread never waits for the end of its own work."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rota.client import LeadershipLost, sync
from rota.client.twin import _Block, _Thread

PATIENCE_S = 60.0


@contextmanager
def a_client(url: str) -> Iterator[Any]:
    with sync.connect(url, client_id="sync") as client:
        yield client


def raised_by(program: Callable[[], object]) -> BaseException | None:
    """What a program raises; a thread of its own would hide a hang from pytest, so it has a deadline."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            program()
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for itself"
    return outcome[0]


def test_a_term_may_be_resigned_in_its_own_block(url: str) -> None:
    def program() -> None:
        with a_client(url) as client, client.leader("writer", session_timeout=60.0) as election:
            with next(iter(election.terms())) as term:
                election.resign("enough")
                term.lost.wait(timeout=PATIENCE_S)

    assert isinstance(raised_by(program), LeadershipLost)


def test_work_may_resign_the_election_that_runs_it(url: str) -> None:
    begun: list[int] = []

    def program() -> None:
        with a_client(url) as client, client.leader("writer", session_timeout=60.0) as election:

            def work(term: Any) -> str:
                begun.append(term.fencing_token)
                if len(begun) == 2:
                    return "led twice"
                election.resign("enough")
                term.lost.wait_in_thread(PATIENCE_S)
                raise LeadershipLost("this term")

            assert election.run(work) == "led twice"

    assert raised_by(program) is None
    assert len(begun) == 2


@pytest.mark.parametrize("place", ["callback", "work", "election"])
def test_an_exit_in_a_thread_of_the_sdk_leaves_and_ends(url: str, place: str) -> None:
    def leave(*_: object) -> None:
        sys.exit(3)

    def program() -> None:
        with a_client(url) as client:
            if place == "election":
                client.leader("exits", session_timeout=60.0).run(leave)
            elif place == "work":
                client.worker_pool("exits", {"work": 1}, leave, session_timeout=60.0).run()
            else:
                with client.consumer("exits", {"work": 1}, on_assigned=leave, session_timeout=60.0) as consumer:
                    consumer.run()

    exited = raised_by(program)
    assert isinstance(exited, SystemExit)
    assert exited.code == 3
    with a_client(url) as client:
        assert client.describe_group("exits").members == ()


def test_a_signal_ends_the_run_of_a_sync_pool_in_order(url: str) -> None:
    """The main thread waits; the signal's handler runs there."""
    drained: list[int] = []

    def work(shard: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert shard.stopping.wait_in_thread(PATIENCE_S)
        drained.append(shard.partition)

    with a_client(url) as client:
        client.worker_pool("stops", {"work": 1}, work, session_timeout=60.0).run()
        assert client.describe_group("stops").members == ()
    assert drained == [0]


class _EndsAtOnce:
    """A member that is rejected as soon as its block was entered, as by a group of another kind."""

    def __init__(self, *, before_it_is_entered: bool = False) -> None:
        self._before_it_is_entered = before_it_is_entered

    async def __aenter__(self) -> None:
        if self._before_it_is_entered:
            raise ConnectionRefusedError
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def __aexit__(self, *_: object) -> None:
        raise ConnectionRefusedError


@pytest.mark.parametrize("before_it_is_entered", [False, True])
def test_a_member_rejected_at_once_enters_its_block_or_raises(before_it_is_entered: bool) -> None:
    """However late the caller's thread wakes up."""

    class SlowWait(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            super().wait(timeout)
            concurrent.futures.wait([block._holding])
            return True

    thread = _Thread()
    thread.start()
    block = _Block(_EndsAtOnce(before_it_is_entered=before_it_is_entered), thread)
    block._entered = SlowWait()

    if not before_it_is_entered:
        block.enter()
    with pytest.raises(ConnectionRefusedError):
        block.enter() if before_it_is_entered else block.leave(None)
    thread.stop()
