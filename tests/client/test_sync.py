"""The sync twin against a real server: the same names, waited for, with callbacks in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import rota.client as sdk
from rota.client import NotFound, OffsetToCommit, sync
from rota.protocol.fencing_token import fencing_token

PATIENCE_S = 60.0


@contextmanager
def a_client(url: str) -> Iterator[Any]:
    with sync.connect(url, client_id="sync") as client:
        yield client


def test_calls_return_what_the_async_ones_do_and_raise_the_same(url: str) -> None:
    with a_client(url) as client:
        assert client.put_topic("documents", 3).partitions == 3
        assert [topic.topic for topic in client.topics()] == ["documents"]
        with pytest.raises(NotFound):
            client.describe_group("nobody")


def test_run_calls_a_plain_function_in_each_term(url: str) -> None:
    with a_client(url) as client, client.leader("writer", session_timeout=60.0) as election:
        assert election.run(lambda term: term.fencing_token) == fencing_token(1)


def test_callbacks_are_plain_functions_in_threads_of_their_own(url: str) -> None:
    reported: list[tuple[str, int, str]] = []

    def note(what: str, partitions: Any) -> None:
        reported.append((what, len(partitions), threading.current_thread().name.split("_")[0]))

    with a_client(url) as client:
        consumer = client.consumer(
            "g",
            {"work": 4},
            on_assigned=lambda added, held: note("assigned", added),
            on_revoked=lambda removed, deadline: note("revoked" if deadline else "no deadline", removed),
        )
        with consumer:
            assigned = consumer.wait_assigned(timeout=PATIENCE_S)
            assert len(assigned.share) == 4
            consumer.commit([OffsetToCommit("work", 1, 7)])
            assert consumer.committed()[("work", 1)] == 7
    assert reported == [("assigned", 4, "rota callback"), ("revoked", 4, "rota callback")]


def test_a_worker_pool_works_in_one_thread_a_shard(url: str) -> None:
    barrier = threading.Barrier(8)

    def index(shard: Any) -> None:
        barrier.wait(PATIENCE_S)
        for position in range(shard.position(), 3):
            shard.commit(position + 1)

    with a_client(url) as client:
        with client.worker_pool("g", {"work": 8}, index) as pool:
            pool.wait_done(timeout=PATIENCE_S)
        assert {each.offset for each in client.offsets("g")} == {3}


def test_an_exception_in_a_callback_comes_out_of_the_block(url: str) -> None:
    called = threading.Event()

    def broken(added: object, held: object) -> None:
        called.set()
        raise ZeroDivisionError

    with a_client(url) as client:
        with pytest.raises(ZeroDivisionError):
            wait_in(client.consumer("g", {"work": 1}, on_assigned=broken), called)


def wait_in(consumer: Any, called: threading.Event) -> None:
    with consumer:
        assert called.wait(PATIENCE_S)


def test_every_public_name_of_the_async_objects_is_there(url: str) -> None:
    with a_client(url) as client:
        public = {name for name in dir(sdk.Client) if not name.startswith("_")}
        assert public <= set(dir(client))


def test_a_bad_url_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError):
        sync.connect("nonsense")
    assert threading.active_count() == before
