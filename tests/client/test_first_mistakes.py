"""What programs do before they have entered a block, twice, or too late: an error at once that says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import rota
from rota.client import Client, Credentials, MembershipLost, OffsetToCommit, Term
from tests.client.stage import GROUP, SESSION_S, TOPICS, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

UNREACHABLE = "http://127.0.0.1:1"


async def forever(_subject: object) -> None:
    await asyncio.Event().wait()


KINDS: dict[str, Callable[[Client], Any]] = {
    "Election": lambda client: client.leader("writer", session_timeout=SESSION_S),
    "Consumer": lambda client: client.consumer(GROUP, TOPICS, session_timeout=SESSION_S),
    "WorkerPool": lambda client: client.worker_pool(GROUP, TOPICS, forever, session_timeout=SESSION_S),
    "ConnectWorker": lambda client: client.connect_worker("connect", (), session_timeout=SESSION_S),
    "Member": lambda client: client.member(
        "own", protocol_type="own", protocols={"v1": b""}, assign=lambda _: {}, session_timeout=SESSION_S
    ),
}
KIND = pytest.mark.parametrize("kind", KINDS)


def run_of(member: Any) -> Awaitable[Any]:
    running: Awaitable[Any] = member.run(forever) if type(member).__name__ == "Election" else member.run()
    return running


# --- once is enough -----------------------------------------------------------------------------


@KIND
@pytest.mark.parametrize("end", ["run", "close", "block"])
@in_virtual_time
async def test_what_was_closed_neither_runs_nor_starts_again(kind: str, end: str) -> None:
    async with a_coordinator() as coordinator:
        member = KINDS[kind](a_worker(coordinator).client)
        if end == "run":
            member.stop()
            await run_of(member)
        elif end == "close":
            await member.start()
            await member.close()
        else:
            async with member:
                pass
        for again in (run_of, lambda it: it.start(), lambda it: it.__aenter__()):
            with pytest.raises(RuntimeError, match="was closed: ask the client for another one"):
                await again(member)


@KIND
@in_virtual_time
async def test_what_is_open_is_not_opened_again(kind: str) -> None:
    async with a_coordinator() as coordinator:
        member = KINDS[kind](a_worker(coordinator).client)
        async with member:
            for again in ("start", "__aenter__"):
                with pytest.raises(RuntimeError, match="is open already"):
                    await getattr(member, again)()


@KIND
@in_virtual_time
async def test_one_run_at_a_time(kind: str) -> None:
    async with a_coordinator() as coordinator:
        member = KINDS[kind](a_worker(coordinator).client)
        async with member:
            running = asyncio.ensure_future(run_of(member))
            await asyncio.sleep(1)
            with pytest.raises(RuntimeError, match="is under way already"):
                await run_of(member)
            member.stop()
            await running


@in_virtual_time
async def test_two_runs_of_one_election_do_not_both_work() -> None:
    begun: list[int] = []

    async def work(term: Term) -> None:
        begun.append(term.fencing_token)
        await asyncio.Event().wait()

    async with a_coordinator() as coordinator, a_worker(coordinator).client.leader("writer") as election:
        first, second = (asyncio.create_task(election.run(work)) for _ in range(2))
        with pytest.raises(RuntimeError, match="is under way already"):
            await second
        await until(lambda: bool(begun))
        await asyncio.sleep(1)
        assert len(begun) == 1
        election.stop()
        await first


# --- before the block ---------------------------------------------------------------------------


async def first_of_all(values: AsyncIterator[object]) -> object:
    return await anext(values)


BEFORE: dict[str, Callable[[Client], Awaitable[object]]] = {
    "consumer.wait_assigned": lambda client: KINDS["Consumer"](client).wait_assigned(),
    "consumer.assignments": lambda client: first_of_all(KINDS["Consumer"](client).assignments()),
    "consumer.events": lambda client: first_of_all(KINDS["Consumer"](client).events()),
    "consumer.committed": lambda client: KINDS["Consumer"](client).committed(),
    "consumer.commit": lambda client: KINDS["Consumer"](client).commit([OffsetToCommit("work", 0, 1)]),
    "consumer.step_aside": lambda client: KINDS["Consumer"](client).step_aside("enough"),
    "member.wait_assigned": lambda client: KINDS["Member"](client).wait_assigned(),
    "member.commit": lambda client: KINDS["Member"](client).commit([OffsetToCommit("work", 0, 1)]),
    "worker.wait_assigned": lambda client: KINDS["ConnectWorker"](client).wait_assigned(),
    "pool.wait_done": lambda client: KINDS["WorkerPool"](client).wait_done(),
    "election.terms": lambda client: first_of_all(KINDS["Election"](client).terms()),
    "election.resign": lambda client: KINDS["Election"](client).resign(),
}


@pytest.mark.parametrize("call", BEFORE)
@in_virtual_time
async def test_what_needs_the_block_says_so_before_it_is_entered(call: str) -> None:
    async with a_coordinator() as coordinator, asyncio.timeout(1):
        with pytest.raises(RuntimeError, match=r"is not open yet: enter its block .* or await start\(\) first"):
            await BEFORE[call](a_worker(coordinator).client)


@in_virtual_time
async def test_nothing_is_stored_or_committed_before_the_block() -> None:
    async with a_coordinator() as coordinator:
        consumer = KINDS["Consumer"](a_worker(coordinator).client)
        with pytest.raises(RuntimeError, match="is not open yet"):
            consumer.store("work", 0, 1)
        with pytest.raises(RuntimeError, match="is not open yet"):
            consumer.commit_soon([OffsetToCommit("work", 0, 1)])


@in_virtual_time
async def test_a_task_created_just_before_run_counts_as_open() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        consumer, pool = KINDS["Consumer"](client), KINDS["WorkerPool"](client)
        tasks = [asyncio.create_task(consumer.run()), asyncio.create_task(pool.start())]
        await consumer.wait_assigned()
        await pool.consumer.wait_assigned()
        consumer.stop()
        await asyncio.gather(*tasks)
        await pool.close()


@in_virtual_time
async def test_to_wait_for_the_end_of_work_ends_with_the_pool() -> None:
    async with a_coordinator() as coordinator:
        pool = KINDS["WorkerPool"](a_worker(coordinator).client)
        await pool.start()
        waiting = asyncio.create_task(pool.wait_done())
        await until(lambda: bool(pool.shards))
        await pool.close()
        with pytest.raises(MembershipLost):
            await waiting


@in_virtual_time
async def test_the_terms_of_an_election_end_when_its_client_closes_it() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        async with client:
            election = KINDS["Election"](client)
            await election.start()
            terms = election.terms()
            async with await anext(terms):
                pass
            following = asyncio.ensure_future(anext(terms, "the end"))
        async with asyncio.timeout(1):
            assert await following == "the end"


@in_virtual_time
async def test_to_resign_after_the_end_is_nothing() -> None:
    async with a_coordinator() as coordinator:
        election = KINDS["Election"](a_worker(coordinator).client)
        async with election:
            pass
        await election.resign()


# --- closed clients, and clients of another event loop ------------------------------------------

CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "topics": lambda client: client.topics(),
    "offsets": lambda client: client.offsets(GROUP),
    "describe_group": lambda client: client.describe_group(GROUP),
    "watch": lambda client: first_of_all(client.watch(GROUP)),
    "watch_topic": lambda client: first_of_all(client.watch_topic("work")),
    "enter": lambda client: client.__aenter__(),
}


@pytest.mark.parametrize("call", CALLS)
@in_virtual_time
async def test_calls_on_a_closed_client_fail_at_once(call: str) -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        async with client:
            pass
        with pytest.raises(RuntimeError, match="this client is closed"):
            await CALLS[call](client)


@KIND
@in_virtual_time
async def test_a_closed_client_makes_and_enters_nothing(kind: str) -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        async with client:
            made_before = KINDS[kind](client)
        for enter in (run_of, lambda it: it.start(), lambda it: it.__aenter__()):
            with pytest.raises(RuntimeError, match="this client is closed"):
                await enter(made_before)
        with pytest.raises(RuntimeError, match="this client is closed"):
            KINDS[kind](client)


@pytest.mark.parametrize("call", CALLS)
def test_a_client_is_for_one_event_loop(call: str) -> None:
    client = rota.connect(UNREACHABLE, retry_timeout=0)

    async def use() -> None:
        with pytest.raises(rota.client.CoordinatorUnreachable):
            await client.topics()

    asyncio.run(use())
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        asyncio.run(awaited(CALLS[call], client))


@KIND
def test_a_member_is_entered_in_the_event_loop_of_its_client(kind: str) -> None:
    client = rota.connect(UNREACHABLE, retry_timeout=0)

    async def use() -> None:
        with pytest.raises(rota.client.CoordinatorUnreachable):
            await client.topics()

    asyncio.run(use())
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        asyncio.run(awaited(lambda client: run_of(KINDS[kind](client)), client))


async def awaited(call: Callable[[Client], Awaitable[object]], client: Client) -> None:
    await call(client)


# --- arguments of the wrong type ------------------------------------------------------------------


@pytest.mark.parametrize("url", [None, 8080, b"http://127.0.0.1:1", [None]])
def test_a_url_that_is_none_is_named(url: Any) -> None:
    with pytest.raises(TypeError, match="url must be a URL, or a list of them, not "):
        rota.connect(url)


def test_a_token_in_the_place_of_credentials_is_not_shown() -> None:
    with pytest.raises(TypeError, match=r"not str$"):
        rota.connect("http://127.0.0.1:1", credentials="a-secret")  # type: ignore[arg-type]


def test_files_of_credentials_may_be_named_by_strings(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-secret")

    assert Credentials(token_file=str(file)).headers() == {"authorization": "Bearer a-secret"}  # type: ignore[arg-type]


@in_virtual_time
async def test_a_time_that_is_no_number_of_seconds_is_named() -> None:
    async with a_coordinator() as coordinator:
        client: Any = a_worker(coordinator).client
        for name in ("session_timeout", "rebalance_timeout", "heartbeat_interval", "preempt_after"):
            with pytest.raises(TypeError, match=f"{name} must be a number of seconds, not '10'"):
                client.leader("writer", **{name: "10"})
        with pytest.raises(TypeError, match="session_timeout must be a number of seconds, not None"):
            client.leader("writer", session_timeout=None)


@in_virtual_time
async def test_milliseconds_that_are_given_for_seconds_are_refused() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        with pytest.raises(ValueError, match=r"session_timeout must be 0\.001 to 3600 seconds, not 15000"):
            client.leader("writer", session_timeout=15_000)
        with pytest.raises(ValueError, match="drain_timeout must be 0 to 86400 seconds, not 300000"):
            await client.consumer(GROUP, TOPICS).run(drain_timeout=300_000)


@in_virtual_time
async def test_an_interval_of_nothing_is_refused() -> None:
    async with a_coordinator() as coordinator:
        client: Any = a_worker(coordinator).client
        for name in ("auto_commit_interval", "max_processing_interval", "topics_refresh_interval"):
            with pytest.raises(ValueError, match=rf"{name} must be 0\.001 to .* seconds, not 0"):
                client.consumer(GROUP, TOPICS, **{name: 0})
        with pytest.raises(ValueError, match=r"refresh_interval must be .* seconds, not -5"):
            client.connect_worker("connect", (), refresh_interval=-5)
