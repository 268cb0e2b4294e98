"""One caller's text that the store cannot hold must not cost the calls of others: an append carries many shards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from rota.core.access.document import AccessDocument
from rota.core.replica.ports import ShardStore
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import DescribeGroup, Protocol, PutTopic, SyncGroup
from rota.server.access.guard import Guard
from rota.server.access.identity import NOTE
from rota.server.runtime.coordinator import LocalCoordinator
from tests.contracts.conftest import SHARD_COUNT
from tests.runtime.conftest import NOW, a_join, until_ready

SUBSCRIPTION = Protocol("range", b'{"topics": ["orders"]}')
TEXTS = {"NUL": b"\\u0000", "surrogate": b"\\ud800", "surrogate in UTF-8": b"\xed\xa0\x80", "long": b"n" * 200_000}
OPEN: Any = SimpleNamespace(policy=SimpleNamespace(document=AccessDocument()))


@pytest.fixture
async def coordinator(store: ShardStore) -> AsyncIterator[LocalCoordinator]:
    async with LocalCoordinator(store, shard_count=SHARD_COUNT, limits=NOW) as coordinator:
        await until_ready(coordinator)
        yield coordinator


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_topic_in_a_share_that_a_leader_assigns_anew(coordinator: LocalCoordinator, text: bytes) -> None:
    joining = a_join("g", protocol_type="consumer", protocols=(SUBSCRIPTION,))
    joined: Any = (await coordinator.call(joining)).reply
    for name in (b"orders", b"a" + text):
        share = ((joined.member_id, b'{"topics": {"%b": [0]}}' % name),)
        sync = SyncGroup("default", "g", joined.member_id, joined.generation_id, assignments=share)
        reply = (await coordinator.call(sync)).reply
        assert reply.error is ErrorCode.NONE, reply.detail

    group: Any = (await coordinator.call(DescribeGroup("default", "g"))).reply
    assert len(group.rebalance_reason) < 500


async def test_a_note_of_an_administrator(coordinator: LocalCoordinator) -> None:
    NOTE.set("a\0b\ud800")

    put = PutTopic("a", "t", 1)
    reply = (await coordinator.call(replace(put, act=Guard(OPEN, Limits()).act()))).reply

    assert reply.error is ErrorCode.NONE, reply.detail
