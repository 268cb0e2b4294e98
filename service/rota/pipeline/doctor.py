"""Can the pipeline run here? Each failed check says why, and what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from rota.pipeline.failures import PipelineFailed
from rota.pipeline.java import delta_jars, find_java
from rota.pipeline.journal import Span, Wanted, check_schema, open_journal, spans_between
from rota.pipeline.session import cache_folder

_PACKAGES = ("pyspark", "pyarrow", "pandas", "adbc-driver-postgresql")
_NEEDED_MB = 3_000


@dataclass(frozen=True, slots=True)
class Checked:
    name: str
    ok: bool
    found: str


def examine(store_url: str) -> Iterator[Checked]:
    """One check after the other; each is made, whatever the ones before say."""
    yield _try("Java", lambda: "{0.release}, from {0.origin} ({0.home})".format(find_java(cache_folder())))
    yield _try("Delta", lambda: f"{len(delta_jars(cache_folder()))} jars in {cache_folder() / 'jars'}")
    for package in _PACKAGES:
        yield _package(package)
    yield _memory()
    yield _try("journal", lambda: _journal(store_url))
    yield _try("first lines", lambda: _readable(store_url))


def _try(name: str, check: Callable[[], str]) -> Checked:
    try:
        return Checked(name, True, check())
    except PipelineFailed as failed:
        return Checked(name, False, str(failed))


def _package(name: str) -> Checked:
    try:
        return Checked(name, True, version(name))
    except PackageNotFoundError:
        return Checked(name, False, "not installed: pip install 'rota[pipeline]'")


def _memory() -> Checked:
    free_mb = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    found = f"{free_mb:,} MB free"
    return Checked("memory", free_mb > _NEEDED_MB, found if free_mb > _NEEDED_MB else f"{found}, Spark wants 3 GB")


def _journal(store_url: str) -> str:
    journal = open_journal(store_url)
    schema = check_schema(journal)
    heads = journal.heads()
    lines = sum(last - heads.first_seq[s] + 1 for s, last in heads.last_seq.items())
    return f"schema {schema}, {lines:,} lines in {heads.shard_count} shards, incarnation {heads.incarnation}"


def _readable(store_url: str) -> str:
    """Read a few lines of every shard, as a task would: that takes the rights, and shows gaps."""
    journal = open_journal(store_url)
    heads = journal.heads()
    spans = [
        Span(each.shard_id, each.first, min(each.last, each.first + 9))
        for each in spans_between(heads.start, heads.end)
    ]
    lines = sum(batch.num_rows for batch in journal.batches(spans, Wanted()))
    return f"{lines} lines of {len(spans)} shards were read"
