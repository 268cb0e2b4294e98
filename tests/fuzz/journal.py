"""Records of the journal that a disk, an operator or another release has changed, and the fold that checks them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any

from rota.core.group.records import decode_entry, encode_entry
from rota.core.group.rows import ShardImage
from rota.core.replica.ports import JournalEvent
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    CommitOffsets,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    PutTopic,
    RebalanceGroup,
    SyncGroup,
)
from rota.server.runtime.coordinator import LocalCoordinator
from rota.storage.verify import JournalFold
from rota.testing.memory import MemoryStore
from tests.fuzz.campaign import Broken, Target
from tests.fuzz.mutations import mutated_document

MOST_LINES = 30
_ENTRY = ("at_ms", "namespace", "group_id", "generation_id", "kind", "reason", "payload")


@cache
def lines() -> tuple[JournalEvent, ...]:
    """The journal of a shard with members that join, sync, commit, rebalance and leave."""
    return asyncio.run(_lived())


class JournalFuzzer:
    """Folds a journal in which some lines are changed, lost or repeated."""

    cpu_s = staticmethod(time.thread_time)

    def play(self, random: Random) -> None:
        self._check_the_form(random.choice(lines()))
        changed = _changed(random, lines()[: random.randint(1, MOST_LINES)])
        fold = JournalFold(0)
        for line in changed:
            fold.add(line)
        report = fold.compare(ShardImage(0, last_seq=len(changed)))
        if not all(type(difference) is str for difference in report.differences):
            raise Broken(f"{report.differences} of {changed}")

    def _check_the_form(self, line: JournalEvent) -> None:
        """A line is read as it was written."""
        written = {name: getattr(line, name) for name in _ENTRY}
        again = encode_entry(decode_entry(json.loads(json.dumps(written))))
        if again != written:
            raise Broken(f"{written} is read and written as {again}")


def _changed(random: Random, former: Sequence[JournalEvent]) -> list[JournalEvent]:
    changed = list(former)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(changed))
        match random.randrange(6):
            case 0:
                changed.insert(at, changed[random.randrange(len(changed))])
            case 1 if len(changed) > 1:
                del changed[at]
            case 2:
                kind = random.choice(lines()).kind
                changed[at] = dataclasses.replace(changed[at], kind=kind)
            case _:
                changed[at] = JournalEvent(**_with_names(mutated_document(random, _columns(changed[at]))))
    return changed


def _columns(line: JournalEvent) -> dict[str, Any]:
    return {field.name: getattr(line, field.name) for field in dataclasses.fields(line)}


def _with_names(document: Any) -> dict[str, Any]:
    """The columns, which a store always gives with these types; the payload is any object."""
    fields = document if isinstance(document, dict) else {}
    columns = {"seq": int, "at_ms": int, "generation_id": int, "epoch": int, "payload": dict}
    read = {}
    for field in dataclasses.fields(JournalEvent):
        kind: type = columns.get(field.name, str)
        value = fields.get(field.name)
        read[field.name] = value if type(value) is kind else kind()
    return read


async def _lived() -> tuple[JournalEvent, ...]:
    store = MemoryStore(lambda: 1_000)
    await store.open(1)
    limits = Limits(initial_rebalance_delay_ms=0)
    async with LocalCoordinator(store, shard_count=1, limits=limits, replica_id="r") as coordinator:
        await coordinator.wait_until_ready()
        await coordinator.call(PutTopic("default", "t", 4))
        for group_id in ("g1", "g2"):
            await _live(coordinator, group_id)
        events = await store.read_events(0, 0, 1_000)
    return tuple(_at_one_time(event) for event in events)


def _at_one_time(event: JournalEvent) -> JournalEvent:
    times = {name: 1_000 for name in ("started_at_ms", "committed_at_ms") if name in event.payload}
    return dataclasses.replace(event, at_ms=1_000, payload=event.payload | times)


async def _live(coordinator: LocalCoordinator, group_id: str) -> None:
    named = ("default", group_id)
    protocols = (Protocol("range", b"m"),)
    joining = JoinGroup(
        *named, "consumer", protocols, 30_000, 30_000, group_instance_id="i", wait_ms=30_000, new_member_id="m"
    )
    joined: Any = (await coordinator.call(joining)).reply
    member = (joined.member_id, joined.generation_id)
    await coordinator.call(SyncGroup(*named, *member, assignments=((joined.member_id, b"a"),), wait_ms=0))
    offsets = tuple(OffsetToCommit("t", partition, 7) for partition in range(3))
    await coordinator.call(CommitOffsets(*named, joined.generation_id, offsets, joined.member_id))
    await coordinator.call(RebalanceGroup(*named))
    await coordinator.call(LeaveGroup(*named, (LeavingMember(joined.member_id),)))


@contextmanager
def opened() -> Iterator[JournalFuzzer]:
    lines()
    yield JournalFuzzer()


JOURNAL = Target("journal", "lines of the journal: their form, and the fold of `rota db verify`", opened)
