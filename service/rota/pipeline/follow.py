"""Following a journal: copy what is new every few seconds, fold it every minute, and leave bookmarks for pruning."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rota.pipeline.bronze import Ingest
from rota.pipeline.failures import PipelineFailed
from rota.pipeline.gold import refresh
from rota.pipeline.journal import Journal
from rota.pipeline.lake import Lake
from rota.pipeline.positions import Position
from rota.pipeline.upkeep import youngest_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def follow_journal(
    spark: SparkSession,
    lake: Lake,
    ingest: Ingest,
    *,
    reader: str = "",
    every_s: float = 5.0,
    refresh_every_s: float = 60.0,
    decoder: str = "",
) -> Iterator[tuple[int, float]]:
    """For ever: after each look that found something, how many lines, and how old the youngest was by then."""
    refreshed = float("-inf")
    while True:
        began = time.monotonic()
        done = ingest.run(spark, lake)
        leave_bookmark(ingest.journal, reader, done.position)
        if began - refreshed >= refresh_every_s:
            refresh(spark, lake, decoder=decoder)
            refreshed = began
        if done.lines:
            youngest = youngest_line(lake)
            yield done.lines, 0.0 if youngest is None else time.time() - youngest.timestamp()
        time.sleep(max(0.0, every_s - (time.monotonic() - began)))


def leave_bookmark(
    journal: Journal, reader: str, position: Position, tell: Callable[[str], None] = lambda _message: None
) -> None:
    """Say how far we have read. Without the right to, or on a standby, that is not our failure: only pruning minds."""
    if not reader:
        return
    try:
        journal.bookmark(reader, position)
    except PipelineFailed as failed:
        tell(f"no bookmark was left for `rota journal prune`: {failed}")
