"""Common steps of the commands of `rota pipeline`: progress, and clear messages for failures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.cli.exits import CommandFailed, Exit
from rota.cli.output import print_notice

if TYPE_CHECKING:
    from rota.pipeline.batches import Progress
    from rota.pipeline.journal import Journal
    from rota.pipeline.lake import Lake

Observe = Callable[["Progress"], None]
"""Is called with each batch."""


def checked(url: str, *, skip_pruned: bool = False) -> dict[str, str]:
    """The options of the data source. Failures that can be known fail here, before Spark starts."""
    from rota.pipeline.journal import check_schema, open_journal

    journal = open_journal(url)
    check_schema(journal)
    journal.heads()
    # Spark's workers find the URL there. Options show in plans, and it may hold a password.
    os.environ["ROTA_STORE"] = url
    return {"urlEnv": "ROTA_STORE", "skipPruned": str(skip_pruned).lower()}


def read(tables: Lake, options: dict[str, str], reader: str, decoder: str) -> None:
    """Read all lines that the journal has now."""
    from rota.pipeline.batches import Batches, progress_of, start
    from rota.pipeline.journal import journal_at

    batches, lines = Batches(tables, decoder), 0
    with busy("reading the journal") as show:
        for done in progress_of(start(batches, options)):
            lines += done.lines
            show(lines, lines + done.latest.lines - done.end.lines)
            leave_bookmark(journal_at(options), reader, done)
    print_notice(f"{lines:,} lines read, {batches.rows.total():,} facts added")
    if unreadable := batches.rows["unreadable"]:
        print_notice(f"{unreadable:,} lines could not be read: see the table `unreadable` and `rota pipeline audit`")


def follow(tables: Lake, options: dict[str, str], reader: str, decoder: str, every_s: float, observe: Observe) -> None:
    """Read new lines for as long as this process lives."""
    from rota.pipeline.batches import Batches, progress_of, start
    from rota.pipeline.journal import journal_at

    for done in progress_of(start(Batches(tables, decoder), options, every_s=every_s), idle=True):
        observe(done)
        if done.lines:
            leave_bookmark(journal_at(options), reader, done)
            print_notice(f"{done.lines:,} lines in {done.seconds:.1f} s; batch {done.batch}")


def leave_bookmark(journal: Journal, reader: str, done: Progress) -> None:
    """Record how far we have read. A login without the right to, or a standby, is no failure: only pruning needs it."""
    from rota.pipeline.failures import PipelineFailed

    if not reader:
        return
    try:
        journal.bookmark(reader, done.end)
    except PipelineFailed as failed:
        print_notice(f"no bookmark was left for `rota journal prune`: {failed}")


def advise(tables: Lake, decoder: str, strategies: list[str] | None = None) -> None:
    from rota.pipeline.advisor import STRATEGIES
    from rota.pipeline.advisor import advise as replay

    with busy("replaying assignments"):
        rows = replay(tables, strategies=strategies or STRATEGIES, decoder=decoder)
    print_notice(f"{rows:,} assignments computed")


def report(
    tables: Lake,
    out: Path,
    days: float,
    since: datetime | timedelta | None = None,
    groups: Sequence[tuple[str, str]] = (),
) -> None:
    from rota.pipeline.report import make_report

    with busy("writing the report"):
        paths = make_report(tables, days=days, since=since, groups=groups).write(out)
    print(paths[0])


@contextmanager
def opened(folder: str, master: str, memory: str, ui_port: int = 0) -> Iterator[Lake]:
    """The tables in a folder, with a session of Spark for the time of the block."""
    from rota.pipeline.lake import Lake
    from rota.pipeline.session import start

    settings = {"spark.driver.memory": memory}
    if ui_port:
        settings |= {"spark.ui.enabled": "true", "spark.ui.port": str(ui_port)}
    with busy("starting Spark"):
        spark = start(master, settings)
    try:
        yield Lake(spark, folder)
    finally:
        spark.stop()


@contextmanager
def metrics_served(address: str) -> Iterator[Observe]:
    """Serve the figures of the last batch at HOST:PORT; for an empty address, serve none."""
    host, colon, port = address.rpartition(":")
    if not address:
        yield lambda _done: None
        return
    if not (colon and port.isdecimal() and int(port) < 65_536):
        raise CommandFailed(f"--metrics is HOST:PORT, such as 0.0.0.0:9464, not {address}", Exit.USAGE)
    from rota.pipeline.metrics import Metrics

    metrics = Metrics()
    try:
        metrics.serve(host, int(port))
    except OSError as error:
        raise CommandFailed(f"--metrics {address}: {error.strerror}") from error
    yield metrics.observe


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
def failures(lake: str = "") -> Iterator[None]:
    """Convert a failure of the pipeline to one line, also if a Spark task has raised it."""
    try:
        from rota.pipeline.failures import JournalUnreachable, failure_of
    except ModuleNotFoundError as error:
        raise CommandFailed(f"{error.name} is missing: pip install 'rota[pipeline]'") from error
    try:
        yield
    except ModuleNotFoundError as error:
        raise CommandFailed(f"{error.name} is missing: pip install 'rota[pipeline]'") from error
    except Exception as error:
        failure = failure_of(error, lake)
        if failure is None:
            raise
        unreachable = isinstance(failure, JournalUnreachable)
        raise CommandFailed(str(failure), Exit.UNAVAILABLE if unreachable else Exit.ERROR) from error
