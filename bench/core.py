"""The pure core alone, a second of one core's CPU each: heartbeats, generations, commits, journal lines, memory."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc

from bench.figures import Effort, Figure, sample
from bench.groups import CALL, LIMITS, NAMESPACE, StableGroup, send
from rota.core.group.records import Entry, encode_entry
from rota.core.group.shard import Shard
from rota.protocol.messages import CommitOffsets, OffsetToCommit

SIZES = (10, 100, 1_000)
HEARTBEATS = 100_000
PAIRS = 20_000
COMMITS = 20_000
HEARTBEATS_AIM = 100_000
PAIRS_AIM = 30_000
LARGE_GROUP = 10_000


def run(effort: Effort) -> list[Figure]:
    """Everything that `Shard.handle` does often, without a runtime around it."""
    figures = [_heartbeats(effort, size) for size in SIZES]
    figures += [_pairs(effort, size) for size in (*SIZES, LARGE_GROUP)]
    figures += [_commits(effort, partitions) for partitions in (1, 10)]
    figures += [_static_returns(effort, size) for size in (10, 1_000, LARGE_GROUP)]
    figures += [_leaves(effort, size) for size in (1_000, LARGE_GROUP)]
    return [*figures, *_journal(effort), _memory(effort)]


def _a_group(size: int) -> StableGroup:
    return StableGroup(Shard(0, LIMITS), "g", size)


def _heartbeats(effort: Effort, size: int) -> Figure:
    """Every member in turn, round after round."""
    stable = _a_group(size)
    heartbeats = stable.heartbeats() * (max(SIZES) // size)
    rounds = effort.times(HEARTBEATS // len(heartbeats))

    def rate() -> float:
        seconds = sum(send(stable.shard, heartbeats, now_ms) for now_ms in range(rounds))
        return rounds * len(heartbeats) / seconds

    return Figure("core", f"heartbeats, group of {size}", "heartbeats/s", sample(effort, rate), aim=HEARTBEATS_AIM)


def _pairs(effort: Effort, size: int) -> Figure:
    """Generation after generation: all members join again and sync, with a new share for each."""
    stable = _a_group(size)
    rounds = effort.times(max(PAIRS // size, 1))

    def rate() -> float:
        return rounds * size / sum(stable.next_generation() for _ in range(rounds))

    return Figure("core", f"join + sync, group of {size}", "pairs/s", sample(effort, rate), aim=PAIRS_AIM)


def _commits(effort: Effort, partitions: int) -> Figure:
    """One commit is one call, of as many partitions; the rows are taken as often as a busy committer would."""
    stable = _a_group(10)
    generation_id = stable.group.generation_id
    offsets = tuple(OffsetToCommit("orders", partition, 123_456) for partition in range(partitions))
    commits = [CommitOffsets(NAMESPACE, "g", generation_id, offsets, member_id) for member_id in stable.member_ids]
    rounds = effort.times(COMMITS // len(commits))

    def rate() -> float:
        seconds = 0.0
        for _ in range(rounds):
            seconds += send(stable.shard, commits)
            stable.shard.rows()
        return rounds * len(commits) / seconds

    return Figure("core", f"offset commits of {partitions} partition(s)", "commits/s", sample(effort, rate))


def _static_returns(effort: Effort, size: int) -> Figure:
    """Followers of a group of static members come back one by one, as in a rolling restart."""
    stable = StableGroup(Shard(0, LIMITS), "g", size, static=True)
    returns = effort.times(100)

    def rate() -> float:
        joins = stable.returns(returns)
        return len(joins) / send(stable.shard, joins)

    return Figure("core", f"static members returning, group of {size}", "joins/s", sample(effort, rate))


def _leaves(effort: Effort, size: int) -> Figure:
    """All members leave one by one, in the order in which they joined: each of them leads when it goes."""

    def rate() -> float:
        stable = _a_group(size)
        return size / send(stable.shard, stable.leaves())

    return Figure("core", f"leaves one by one, group of {size}", "leaves/s", sample(effort, rate))


def _journal(effort: Effort) -> list[Figure]:
    """What one line of the journal costs to encode, up to the JSON text that the store gets."""
    lines = _entries_of_a_generation(100)
    commit = lines.pop("offsets_committed")
    figures = [_encoding(effort, "offsets_committed, 1 partition", commit)]
    return figures + [_encoding(effort, f"{kind}, 100 members", entry) for kind, entry in lines.items()]


def _encoding(effort: Effort, name: str, entry: Entry) -> Figure:
    times = effort.times(2_000)

    def microseconds() -> float:
        started = time.thread_time()
        for _ in range(times):
            json.dumps(encode_entry(entry)["payload"])
        return (time.thread_time() - started) / times * 1e6

    return Figure("core", f"journal line {name}", "µs", sample(effort, microseconds))


def _entries_of_a_generation(size: int) -> dict[str, Entry]:
    stable = _a_group(size)
    shard = stable.shard
    results = [shard.handle(join, CALL, 0) for join in stable.joins()]
    results += [shard.handle(sync, CALL, 0) for sync in stable.syncs()]
    offsets = (OffsetToCommit("orders", 0, 123_456),)
    commit = CommitOffsets(NAMESPACE, "g", stable.group.generation_id, offsets, stable.member_ids[0])
    results.append(shard.handle(commit, CALL, 0))
    wanted = ("generation_completed", "assignment_synced", "offsets_committed")
    entries = {entry.record.kind: entry for result in results for entry in result.records}
    return {kind: entries[kind] for kind in wanted}


def _memory(effort: Effort) -> Figure:
    """What stays allocated for a member of a Stable group, its ids, metadata and share included."""
    size = 10_000

    def kilobytes() -> float:
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        shard = Shard(0, LIMITS)
        StableGroup(shard, "g", size)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert shard.groups
        return (after - before) / size / 1_000

    return Figure("core", "memory of a member", "kB", sample(Effort(repeats=min(2, effort.repeats)), kilobytes))
