"""Journals for tests: true histories, made by the real core in the simulator, and stores that hold them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

from rota.core.group.records import encode_entry
from rota.demo.workload.generate import Wanted
from rota.pipeline.tables import Line
from rota.storage.migrate import upgrade
from tests.simulation.profiles import PROFILES, Parts, Profile
from tests.simulation.world import World

UNTIL_MS = 1_763_700_000_000


def fleet(store_url: str) -> Wanted:
    """A small fleet's journal, in two shards."""
    return Wanted(store_url, groups=8, days=0.02, seed=7, until_ms=UNTIL_MS, shard_count=2)


INCARNATION = "11111111111111111111111111111111"


def simulated_units(assignment: bytes) -> list[str]:
    """What the simulator's members put into an assignment: numbers of partitions."""
    return [unit for unit in assignment.decode().split(",") if unit]


SIMULATED = {"consumer": simulated_units, "worker": simulated_units}
DECODER = ",".join(f"{type_}={__name__}:simulated_units" for type_ in SIMULATED)


class _WithoutFreezes(World):
    """The oracle counts moves of partitions, and does not know what a freeze holds back."""

    def _parts(self, profile: Profile) -> Parts:
        parts = super()._parts(profile)
        return replace(parts, sluggish=False, beside=parts.beside - {"freeze_group"})


@cache
def simulated(seed: int, profile: str = "faults") -> tuple[Line, ...]:
    """The journal of a faulty world, shard by shard."""
    world = _WithoutFreezes(seed, replace(PROFILES[profile], shards=2, safety_ms=20_000))
    history = world.run()
    assert not history.violations, history.violations
    lines = []
    for shard_id, landed in history.journal.items():
        for each in landed:
            written = encode_entry(each.entry)
            payload = json.dumps(written.pop("payload"))
            lines.append(Line(shard_id, each.seq, epoch=each.epoch, payload=payload, **written))
    return tuple(lines)


def sqlite_store(path: Path, lines: Iterable[Line], *, shard_count: int = 2, incarnation: str = INCARNATION) -> str:
    """A store in a file, made by our migrations, that holds these lines; its URL."""
    url = f"sqlite:///{path}"
    asyncio.run(upgrade(url))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO store VALUES (1, ?, ?, 0)", (shard_count, incarnation))
        connection.executemany(
            "INSERT INTO shards (shard_id, replica_id, address, epoch, lease_until_ms, last_seq)"
            " VALUES (?, '', '', 0, 0, 0)",
            [(shard_id,) for shard_id in range(shard_count)],
        )
    append_to_sqlite(url, lines)
    return url


def append_to_sqlite(url: str, lines: Iterable[Line]) -> None:
    """More lines, as if a service had written them."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.executemany(
            "INSERT INTO group_events (shard_id, seq, at, epoch, namespace, group_id, generation_id, kind, reason,"
            " payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            list(lines),
        )
        connection.execute(
            "UPDATE shards SET last_seq ="
            " (SELECT coalesce(max(seq), 0) FROM group_events AS e WHERE e.shard_id = shards.shard_id)"
        )


def ordered(lines: Sequence[Line]) -> list[Line]:
    """As the fold wants them: group by group, each in the order of its numbers."""
    return sorted(lines, key=lambda line: (line.shard_id, line.namespace, line.group_id, line.seq))
