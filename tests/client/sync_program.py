"""A user's program on the sync SDK. It is run, and type-checked: each `type: ignore` must be an error to mypy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import assert_type

from rota.client import GroupEvent, OffsetToCommit, TopicPartition, sync
from rota.client.events import Assigned
from rota.protocol.messages import TopicReply

Places = tuple[TopicPartition, ...]


def index(shard: sync.Shard) -> None:
    assert_type(shard.position(), int)
    assert_type(shard.stopping.wait(timeout=0.0) if shard.stopping.is_set() else shard.is_held, bool)
    shard.commit(shard.position() + 1)


def lead(term: sync.Term) -> int:
    assert_type(term.valid_until, float | None)
    return term.fencing_token


def start(added: Places, held: Places) -> None:
    print("holds", len(held))


def main(url: str) -> None:
    with sync.connect(url, client_id="program") as client:
        assert_type(client, sync.Client)
        assert_type(client.put_topic("documents", 2), TopicReply)
        with client.leader("writer") as election:
            assert_type(election.run(lead), int | None)
            assert_type(election.terms(), Iterator[sync.Term])
        with client.consumer("readers", "documents", on_assigned=start) as consumer:
            assert_type(consumer.wait_assigned(timeout=20), Assigned[Places])
            consumer.commit([OffsetToCommit("documents", 0, 7)])
            assert_type(consumer.committed(), dict[TopicPartition, int])
        with client.worker_pool("indexers", "documents", index) as pool:
            pool.wait_done(timeout=20)
        assert_type(client.watch("readers", 0), Iterator[GroupEvent])


def mistakes(client: sync.Client, consumer: sync.Consumer, term: sync.Term) -> None:
    """Never run."""
    client.leader("writer", session_timeout_ms=3_000)  # type: ignore[call-arg]
    consumer.comit([])  # type: ignore[attr-defined]
    consumer.commit("documents")  # type: ignore[arg-type]
    term.lost.wait(5.0)  # type: ignore[call-arg]
    client.worker_pool("indexers", "documents", lead)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1])
