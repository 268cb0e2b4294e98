"""Common steps of the commands of `rota pipeline`: progress, and clear messages for failures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.cli.exits import CommandFailed, Exit
from rota.cli.output import print_notice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rota.pipeline.bronze import Ingest
    from rota.pipeline.lake import Lake
    from rota.pipeline.meters import Meters
    from rota.pipeline.tasks import Workers


def checked(url: str, folder: str, format_: str, *, skip_pruned: bool = False) -> tuple[Ingest, str]:
    """Return how to read the journal, and its incarnation. Predictable failures are raised here, before any table is
    created.
    """
    from rota.pipeline.bronze import Ingest, behind_pruned
    from rota.pipeline.journal import open_journal
    from rota.pipeline.lake import FORMATS, Lake
    from rota.pipeline.last_lines import refuse_other_lines
    from rota.pipeline.positions import Position
    from rota.pipeline.schema_check import check_schema

    if format_ not in FORMATS:
        raise CommandFailed(f"--format is one of {', '.join(FORMATS)}", Exit.USAGE)
    journal = open_journal(url)
    check_schema(journal)
    heads = journal.heads()
    made = Lake.exists(folder)
    done = Lake.open(folder).ingested()[1] if made else Position(heads.incarnation, {})
    heads.check(behind_pruned(done, heads) if skip_pruned else done)
    refuse_other_lines(journal, heads, done, Lake.open(folder).last_lines() if made else {})
    return Ingest(journal, {"urlEnv": "ROTA_STORE"}, skip_pruned=skip_pruned), heads.incarnation


def made(folder: str, format_: str, incarnation: str) -> Lake:
    """Return the tables, created if they do not exist."""
    from rota.pipeline.lake import Lake

    return Lake.create(folder, format_, incarnation)


def hand_over(url: str) -> str:
    """Put the URL into the environment of Spark's workers. Plans show options, and it may contain a password."""
    os.environ["ROTA_STORE"] = url
    return url


def ingest_once(workers: Workers, tables: Lake, how: Ingest, reader: str) -> None:
    from rota.pipeline.follow import leave_bookmark

    with tables.locked(), busy("reading the journal") as progress:
        done = how.run(workers, tables, progress)
    leave_bookmark(how.journal, reader, done.position, print_notice)
    print_notice(f"{done.lines:,} lines read; batch {done.batch}")


def refresh(workers: Workers, tables: Lake, decoder: str) -> None:
    from rota.pipeline.gold import refresh as fold

    with tables.locked(), busy("folding"):
        done = fold(workers, tables, decoder=decoder)
    print_notice(f"{sum(done.rows.values()):,} facts added")
    if unreadable := done.rows.get("unreadable"):
        print_notice(f"{unreadable:,} lines could not be read: see the table `unreadable` and `rota pipeline audit`")


def advise(workers: Workers, tables: Lake, decoder: str, strategies: list[str] | None = None) -> None:
    from rota.pipeline.advisor import STRATEGIES
    from rota.pipeline.advisor import advise as replay

    with tables.locked(), busy("replaying assignments"):
        rows = replay(workers, tables, strategies=strategies or STRATEGIES, decoder=decoder)
    print_notice(f"{rows:,} assignments computed")


def report(
    spark: SparkSession,
    tables: Lake,
    out: Path,
    days: float,
    since: datetime | timedelta | None = None,
    groups: Sequence[tuple[str, str]] = (),
) -> None:
    from rota.pipeline.report import make_report

    with busy("writing the report"):
        paths = make_report(spark, tables, days=days, since=since, groups=groups).write(out)
    print(paths[0])


def existing(folder: str, *, older: bool = False) -> Lake:
    from rota.pipeline.lake import Lake

    return Lake.open(folder, older=older)


@contextmanager
def spark_session(master: str, memory: str) -> Iterator[SparkSession]:
    from rota.pipeline.session import session

    with ExitStack() as stack:
        with busy("starting Spark"):
            spark = stack.enter_context(session(master, {"spark.driver.memory": memory}))
        yield spark


@contextmanager
def workers_when_needed(master: str, memory: str) -> Iterator[Workers]:
    """Start Spark if there is much to do. If it must not start, fail before any table is written."""
    from rota.pipeline.session import check_java, session_when_needed

    check_java()
    with session_when_needed(master, {"spark.driver.memory": memory}) as workers:
        yield workers


@contextmanager
def metrics_served(meters: Meters, address: str) -> Iterator[None]:
    """Serve the metrics at HOST:PORT; do nothing for an empty address."""
    from rota.pipeline.meters import served

    host, colon, port = address.rpartition(":")
    if not address:
        yield
        return
    if not (colon and port.isdecimal() and int(port) < 65_536):
        raise CommandFailed(f"--metrics is HOST:PORT, such as 0.0.0.0:9464, not {address}", Exit.USAGE)
    with ExitStack() as stack:
        try:
            stack.enter_context(served(meters, host, int(port)))
        except OSError as error:
            raise CommandFailed(f"--metrics {address}: {error.strerror}") from error
        yield


@contextmanager
def busy(what: str) -> Iterator[Any]:
    """Show progress, with a percentage if known; yields the function to call with the done and total amounts."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # Spark's start-up messages go to standard error; the user sees another copy of it.
    with os.fdopen(os.dup(2), "w") as terminal:
        console = Console(file=terminal)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(what, total=None)
            yield lambda done, wanted: progress.update(task, completed=done, total=wanted)


@contextmanager
def failures() -> Iterator[None]:
    """Convert a failure of the pipeline to one line, also if a Spark task has raised it."""
    try:
        from rota.pipeline.failures import JournalUnreachable, PipelineFailed
        from rota.pipeline.spark_errors import message_of_spark
    except ModuleNotFoundError as error:
        raise CommandFailed(f"{error.name} is missing: pip install 'rota[pipeline]'") from error
    try:
        yield
    except ModuleNotFoundError as error:
        raise CommandFailed(f"{error.name} is missing: pip install 'rota[pipeline]'") from error
    except JournalUnreachable as unreachable:
        raise CommandFailed(str(unreachable), Exit.UNAVAILABLE) from unreachable
    except PipelineFailed as failed:
        raise CommandFailed(str(failed)) from failed
    except Exception as error:
        message = message_of_spark(error)
        if message is None:
            raise
        raise CommandFailed(message) from error
