"""Checks at the end of the demo, each at its source: results, offsets, journal, coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from rota.client import Client
from rota.client.transports import HttpTransport
from rota.demo.board import Board, Loss
from rota.demo.results import Fenced, Results
from rota.demo.work import TOPIC, Work
from rota.protocol.messages import CommitOffsets, OffsetToCommit

_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and whether it is true."""

    claim: str
    holds: bool


async def check_work(work: Work, results: Results, expected_words: int, group_id: str, client: Client) -> list[Check]:
    """Check that all files are counted once, and that the offsets agree."""
    files, words = results.totals()
    offsets = {each.partition: each.offset for each in await client.offsets(group_id) if each.topic == TOPIC}
    ends = {number: work.end(number) for number in range(len(work.partitions)) if work.end(number)}
    by_worker = ", ".join(f"{count} by {worker}" for worker, count in results.by_worker().items())
    return [
        Check(f"every file was counted exactly once: {files} of {work.total} ({by_worker})", files == work.total),
        Check(
            f"the words agree: {words} counted by the workers, {expected_words} counted directly",
            words == expected_words,
        ),
        Check(f"all {len(ends)} offsets are at their ends", offsets == ends),
    ]


async def check_loss(
    loss: Loss, board: Board, results: Results, url: str, namespace: str, group_id: str
) -> list[Check]:
    """Check that the killed worker's partitions continued, and that no write in its name was or is accepted after its
    fence.
    """
    checks = [
        Check(f"{loss.worker} was killed in the middle of its work", bool(loss.unfinished)),
        Check(
            f"others had its {len(loss.unfinished)} unfinished partitions "
            f"{loss.handed_over or 0:.1f} s after the kill, and finished them",
            loss.handed_over is not None and loss.taken_over.keys() == loss.unfinished.keys(),
        ),
        Check(
            f"the journal has no commit of {loss.worker} after it was removed",
            loss.expired_revision is not None and not loss.late_commits,
        ),
    ]
    return checks + [check async for check in _check_zombie(loss, board, results, url, namespace, group_id)]


async def _check_zombie(
    loss: Loss, board: Board, results: Results, url: str, namespace: str, group_id: str
) -> AsyncIterator[Check]:
    """Check the writes that the killed worker would make if it were only paused."""
    partition = min(loss.unfinished, default=0)
    offset = OffsetToCommit(TOPIC, partition, board.work.end(partition) + 1)
    request = CommitOffsets(namespace, group_id, loss.generation_id, (offset,), loss.member_id)
    transport = HttpTransport([url])
    try:
        reply = (await transport.send(request, timeout_ms=_TIMEOUT_MS)).reply
    finally:
        await transport.close()
    yield Check(
        f"a commit in its name is rejected by the coordinator: {reply.error}",
        reply.error in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"),
    )
    try:
        results.add(partition, board.work.end(partition), "", 1, loss.worker, loss.generation_id)
    except Fenced as fenced:
        yield Check(f"a result in its name is rejected by the fence: {fenced}", holds=True)
    else:
        yield Check("a result in its name is rejected by the fence", holds=False)
