"""What threads may ask of the async SDK, and how signals and forks are met; in real time, and quickly."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from rota.client import Client, FinalSignal, MembershipLost, Shard, Term, sync
from rota.client.pulse import Pulse
from rota.client.threads import LoopThread
from rota.protocol.messages import HeartbeatReply
from rota.protocol.wire.replies import Received
from tests.client.stage import GROUP, Cable, a_coordinator, a_worker
from tests.client.virtual_time import in_virtual_time, pause

PATIENCE_S = 30.0


async def test_work_in_a_thread_asks_whether_it_still_holds_its_shard() -> None:
    async with a_coordinator() as coordinator:
        worker, seen = a_worker(coordinator), list[Any]()

        def in_thread(shard: Shard) -> None:
            shard.raise_if_lost()
            seen.append(shard.is_held)
            assert shard.stopping.wait_in_thread(PATIENCE_S)
            seen.append(shard.stopping.is_set())

        async def work(shard: Shard) -> None:
            await asyncio.to_thread(in_thread, shard)

        async with worker.client.worker_pool(GROUP, {"work": 1}, work, drain_timeout=30.0) as pool:
            while not seen:  # noqa: ASYNC110 — set by another thread
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(lambda: pool.consumer.assignment) == (("work", 0),)
        assert seen == [True, True]


async def test_work_in_a_thread_sees_a_loss_despite_a_blocked_loop() -> None:
    async with a_coordinator() as coordinator:
        worker, is_over = a_worker(coordinator), threading.Event()
        outcome: list[object] = []

        def in_thread(shard: Shard) -> None:
            while shard.is_held:
                is_over.wait(0.01)
            try:
                shard.raise_if_lost()
            except MembershipLost as error:
                outcome.append(error)

        async def work(shard: Shard) -> None:
            await asyncio.to_thread(in_thread, shard)

        pool = worker.client.worker_pool(GROUP, {"work": 1}, work, session_timeout=1.0)
        async with pool:
            await pool.consumer.wait_assigned()
            worker.cable.pull()
            blocked = threading.Event()
            blocked.wait(1.5)
            while not outcome:  # noqa: ASYNC110 — set by another thread
                await asyncio.sleep(0.01)
            worker.cable.plug_in()


@in_virtual_time
async def test_the_heartbeat_thread_beats_once_for_half_a_session() -> None:
    async with a_coordinator() as coordinator, a_worker(coordinator).member(session_timeout=10.0) as member:
        await member.wait_assigned()
        driver, beats = member._driver, 0
        for _ in range(120):  # It looks ten times a second, for 12 s, while the event loop is blocked.
            pause(0.1)
            if (request := driver.overdue_heartbeat()) is not None:
                reply = HeartbeatReply(generation_id=request.generation_id, state="Stable")
                driver.beaten(request, Received(reply), driver.clock_ms())
                beats += 1
        assert beats == 2


async def test_threads_may_ask_a_term_and_have_the_candidate_stop() -> None:
    async with a_coordinator() as coordinator:
        election = a_worker(coordinator).client.leader("writer")

        def in_thread(term: Term) -> bool:
            term.raise_if_lost()
            was_valid, stopping = term.is_valid, term.stopping  # Work that has not looked at it is cancelled at once.
            election.stop()
            return was_valid and stopping.wait_in_thread(PATIENCE_S)

        async def work(term: Term) -> bool:
            return await asyncio.to_thread(in_thread, term)

        assert await election.run(work, drain_timeout=30.0) is True


def test_a_stop_signal_is_never_cleared() -> None:
    with pytest.raises(RuntimeError):
        FinalSignal().clear()


# --- signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_drains_and_the_second_cancels(number: signal.Signals) -> None:
    async with a_coordinator() as coordinator:
        ends: list[str] = []

        async def work(shard: Shard) -> None:
            try:
                await shard.stopping.wait()
                ends.append("stopping")
                os.kill(os.getpid(), number)
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        former = signal.getsignal(number)
        pool = a_worker(coordinator).client.worker_pool(GROUP, {"work": 1}, work)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(pool.run(drain_timeout=60.0))
            while not pool.shards:  # noqa: ASYNC110 — the work begins with it
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), number)
            await running
        assert ends == ["stopping", "cancelled"]
        assert signal.getsignal(number) == former


# --- a process that has used up its files ----------------------------------------------------------


def no_files_are_left() -> asyncio.AbstractEventLoop:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_loop_that_cannot_begin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.events, "new_event_loop", no_files_are_left)
    raised: list[OSError] = []

    def connect() -> None:
        try:
            sync.connect("http://127.0.0.1:1")
        except OSError as error:
            raised.append(error)

    connecting = threading.Thread(target=connect, daemon=True)
    connecting.start()
    connecting.join(10)

    assert [error.errno for error in raised] == [errno.EMFILE]


@in_virtual_time
async def test_a_member_without_its_heartbeat_thread_does_not_join() -> None:
    async with a_coordinator() as coordinator:
        cable = Cable(coordinator)
        client = Client(cable, pulse=Pulse(lambda: cable))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(asyncio.events, "new_event_loop", no_files_are_left)
            with pytest.raises(OSError, match="Too many open files"):
                await client.leader("writer").__aenter__()
        await asyncio.sleep(10)

        assert cable.requests == []


# --- forks --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_gets_a_clear_error(tmp_path: Path) -> None:
    thread, said = LoopThread("a test"), tmp_path / "said"
    thread.start()

    async def nothing() -> None:
        """To be run there."""

    gc.disable()  # What gRPC has left in this process must not be collected in the child: that spins for ever there.
    child = os.fork()
    if child == 0:
        try:
            thread.run(nothing())
        except RuntimeError as error:
            said.write_text(str(error))
        finally:
            thread.stop()
            os._exit(0)
    gc.enable()
    assert os.waitpid(child, 0)[1] == 0
    assert "forked child" in said.read_text()
    thread.run(nothing())
    thread.stop()
