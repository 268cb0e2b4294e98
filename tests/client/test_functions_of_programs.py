"""Functions of the wrong kind are rejected by name, and a CancelledError that is not ours is an error of theirs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rota.client import Election, Shard, Term, WorkItem, sync
from rota.client.user_functions import check_async_work, check_plain
from tests.client.stage import GROUP, SESSION_S, TOPICS, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time


def an_election(worker: Worker) -> Election:
    return worker.client.leader("writer", session_timeout=SESSION_S)


# --- what can be known before it is called ------------------------------------------------------


def plain(subject: object) -> None:
    raise AssertionError("it must not be called")


def plain_with_ways_out(subject: object) -> None:
    if subject:
        return
    while True:
        plain(subject)


def a_generator(subject: object) -> Iterator[int]:
    yield 1


async def an_async_generator(subject: object) -> AsyncIterator[int]:
    yield 1


async def an_async_function(subject: object) -> None:
    await asyncio.sleep(0)


@functools.wraps(an_async_function, assigned=())
def runs_it_to_its_end(*arguments: object) -> None:
    asyncio.run(an_async_function(*arguments))


class Plain:
    def __call__(self, subject: object) -> None:
        plain(subject)

    def method(self, subject: object) -> None:
        plain(subject)


class Async:
    async def __call__(self, subject: object) -> None:
        await asyncio.sleep(0)

    async def method(self, subject: object) -> None:
        await asyncio.sleep(0)

    @staticmethod
    async def static(subject: object) -> None:
        await an_async_function(subject)


PLAIN: dict[str, Callable[..., Any]] = {
    "plain": plain,
    "plain_with_ways_out": plain_with_ways_out,
    "runs_it_to_its_end": runs_it_to_its_end,
    "Plain": Plain(),
    "Plain.method": Plain().method,
    "plain ": functools.partial(plain, 1),
}
ASYNC: dict[str, Callable[..., Any]] = {
    "an_async_function": an_async_function,
    "Async": Async(),
    "Async.method": Async().method,
    "Async.static": Async.static,
    "an_async_function ": functools.partial(functools.partial(an_async_function), 1),
    "an_async_generator": an_async_generator,
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_function_is_no_work_of_the_async_sdk(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name.strip().split('.')[0]}.* is no async function"):
        check_async_work(PLAIN[name])
    if name != "runs_it_to_its_end":
        check_plain(PLAIN[name])


@pytest.mark.parametrize("work", [a_generator, an_async_generator, 3, None])
def test_neither_a_generator_nor_a_value_is_work(work: Any) -> None:
    with pytest.raises(TypeError, match="work must be an async function"):
        check_async_work(work)


@pytest.mark.parametrize("name", [name for name in ASYNC if name != "an_async_generator"])
def test_async_functions_of_any_form_are_work(name: str) -> None:
    check_async_work(ASYNC[name])


@in_virtual_time
async def test_run_and_worker_pool_reject_a_plain_function() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        with pytest.raises(TypeError, match="plain is no async function"):
            await an_election(worker).run(plain)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="plain is no async function"):
            worker.client.worker_pool(GROUP, TOPICS, plain)  # type: ignore[arg-type]


@in_virtual_time
async def test_work_without_an_awaitable_is_an_error_with_its_name() -> None:
    def seven(subject: object) -> int:
        return 7

    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        with pytest.raises(TypeError, match=r"seven is no async function: it returned 7"):
            await an_election(worker).run(seven)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"seven is no async function: it returned 7"):
            await worker.client.worker_pool(GROUP, TOPICS, seven).run()  # type: ignore[arg-type]


# --- the sync twin ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ASYNC)
def test_the_sync_twin_rejects_an_async_function_at_the_call(name: str) -> None:
    function = ASYNC[name]
    text = f"{name.strip().split('.')[0]}.* is an async function"
    with sync.connect("http://127.0.0.1:1", retry_timeout=0) as client:
        for attempt in (
            lambda: client.worker_pool(GROUP, TOPICS, function),
            lambda: client.consumer(GROUP, TOPICS, on_revoked=function),
            lambda: client.consumer(GROUP, "work", partitions_per_topic=function),
            lambda: client.connect_worker(GROUP, function),
            lambda: client.leader("writer").run(function),
            lambda: client.consumer(GROUP, TOPICS).commit_soon(then=function),
        ):
            with pytest.raises(TypeError, match=text):
                attempt()


# --- a CancelledError that is not ours ----------------------------------------------------------


async def awaits_what_is_cancelled(_subject: object) -> None:
    inner = asyncio.create_task(asyncio.Event().wait())
    asyncio.get_running_loop().call_later(1, inner.cancel)
    await inner


async def raises_it(_subject: object) -> None:
    raise asyncio.CancelledError


STRAY = pytest.mark.parametrize("work", [awaits_what_is_cancelled, raises_it])


@STRAY
@in_virtual_time
async def test_a_pool_fails_where_its_work_raises_a_cancellation(work: Any) -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        with pytest.raises(RuntimeError, match=f"{work.__name__} raised CancelledError, but was not cancelled"):
            await client.worker_pool(GROUP, {"work": 1}, work).run(until_done=True)
        assert (await client.describe_group(GROUP)).members == ()


@STRAY
@in_virtual_time
async def test_an_election_fails_where_its_work_raises_a_cancellation(work: Any) -> None:
    async with a_coordinator() as coordinator:
        with pytest.raises(RuntimeError, match=f"{work.__name__} raised CancelledError, but was not cancelled"):
            await an_election(a_worker(coordinator)).run(work)


@in_virtual_time
async def test_an_election_that_retries_campaigns_after_a_cancellation() -> None:
    begun = []

    async def work(term: Term) -> str:
        begun.append(term.fencing_token)
        if len(begun) < 3:
            await raises_it(term)
        return "done"

    async with a_coordinator() as coordinator:
        election = an_election(a_worker(coordinator))
        assert await election.run(work, retry=True) == "done"
        assert isinstance(election.failure, RuntimeError)


@in_virtual_time
async def test_work_that_a_loss_cancels_has_not_failed() -> None:
    begun = []

    async def work(shard: Shard) -> None:
        begun.append(shard.fencing_token)
        await asyncio.Event().wait()

    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        pool = worker.client.worker_pool(GROUP, {"work": 1}, work, session_timeout=SESSION_S)
        async with pool:
            await until(lambda: len(begun) == 1)
            worker.cable.pull()
            await asyncio.sleep(10)
            worker.cable.plug_in()
            await until(lambda: len(begun) == 2)


@in_virtual_time
@pytest.mark.parametrize("place", ["on_assigned", "on_revoked", "partitions_per_topic", "then"])
async def test_a_callback_that_raises_its_own_cancellation_has_failed(place: str) -> None:
    async def stray(*_: object) -> None:
        raise asyncio.CancelledError

    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        options: dict[str, Any] = {} if place == "then" else {place: stray}
        topics: Any = "work" if place == "partitions_per_topic" else TOPICS
        consumer = client.consumer(GROUP, topics, session_timeout=SESSION_S, **options)

        async def program() -> None:
            async with consumer:
                await consumer.wait_assigned()
                if place == "then":
                    consumer.commit_soon([], stray)
                    await asyncio.sleep(1)

        if place != "partitions_per_topic":
            with pytest.raises(RuntimeError, match="stray raised CancelledError, but was not cancelled"):
                await program()
            return
        async with consumer:
            failed = await anext(event async for event in consumer.events() if hasattr(event, "detail"))
            assert "stray raised CancelledError" in failed.detail


async def test_a_config_offset_that_is_no_number_is_named() -> None:
    async def read() -> int:
        return 7

    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        with pytest.raises(TypeError, match="a number, or a plain function that returns one"):
            client.connect_worker("read", [WorkItem("sink", 0)], config_offset=read)  # type: ignore[arg-type]
