"""`rota pipeline`: the journal as tables, reports and advice, on Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import OutputFormat, Store, shared, store_url
from rota.cli.output import print_items, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rota.pipeline.bronze import Ingest
    from rota.pipeline.lake import Lake

app = typer.Typer(no_args_is_help=True, help="Make tables, reports and advice of the journal, with Spark.")

Folder = Annotated[
    Path, typer.Option("--lake", envvar="ROTA_LAKE", metavar="DIR", help="The folder of the tables.", file_okay=False)
]
Master = Annotated[
    str, typer.Option("--master", envvar="ROTA_SPARK_MASTER", help="Where Spark runs; under spark-submit it knows.")
]
Memory = Annotated[str, typer.Option("--memory", help="How much memory a local Spark may take.")]
Decode = Annotated[
    str,
    typer.Option(metavar="MODULE:FUNCTION", help="Reads assignments of a type of your own: bytes to names of units."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the report goes.", file_okay=False)]
Days = Annotated[float, typer.Option(min=0.01, help="How far back the report looks.")]
Format = Annotated[str, typer.Option("--format", help="Of new tables: delta, or parquet for plain files.")]
Reader = Annotated[
    str, typer.Option(help="Our name among the journal's readers: pruning stays behind us. Empty leaves no bookmark.")
]

LAKE, OUT = Path("rota-lake"), Path("rota-report")


@app.command()
def doctor(context: typer.Context, store: Store = None, lake: Folder = LAKE, output: OutputFormat = None) -> None:
    """Say whether the pipeline can run here: Java, packages, memory, the journal and our rights to it, the tables."""
    with failures():
        from rota.pipeline.doctor import examine

        checks = list(examine(store_url(store), lake))
    items = [{"check": each.name, "ok": each.ok, "found": each.found} for each in checks]
    print_items(items, shared(context, output=output).output, columns=("check", "ok", "found"), name="check")
    if bad := [each.name for each in checks if not each.ok]:
        raise CommandFailed(f"not ready: {', '.join(bad)}")


@app.command()
def run(
    store: Store = None,
    lake: Folder = LAKE,
    out: Out = OUT,
    days: Days = 7.0,
    master: Master = "",
    memory: Memory = "2g",
    format_: Format = "delta",
    reader: Reader = "pipeline",
    decoder: Decode = "",
) -> None:
    """Everything at once: read what is new, fold it, ask the advisor, and write the report."""
    with failures():
        how, incarnation = _checked(_hand_over(store_url(store)), lake, format_)
        with _spark(master, memory) as spark:
            tables = _made(lake, format_, incarnation)
            _ingest_once(spark, tables, how, reader)
            _refresh(spark, tables, decoder)
            _advise(spark, tables, decoder)
            _report(spark, tables, out, days)


@app.command()
def ingest(
    store: Store = None,
    lake: Folder = LAKE,
    follow: Annotated[bool, typer.Option("--follow/--once", help="Go on, and keep the facts up to date.")] = False,
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="With --follow: seconds between two looks.")] = 5.0,
    refresh_every_s: Annotated[
        float, typer.Option("--refresh-every", min=0.1, help="With --follow: seconds between two refreshes.")
    ] = 60.0,
    skip_pruned: Annotated[bool, typer.Option(help="Go on behind lines that were pruned before we read them.")] = False,
    master: Master = "",
    memory: Memory = "2g",
    format_: Format = "delta",
    reader: Reader = "pipeline",
    decoder: Decode = "",
) -> None:
    """Copy what is new in the journal. Killed at any moment, it neither loses nor doubles a line."""
    with failures():
        how, incarnation = _checked(_hand_over(store_url(store)), lake, format_, skip_pruned=skip_pruned)
        with _spark(master, memory) as spark:
            tables = _made(lake, format_, incarnation)
            if not follow:
                _ingest_once(spark, tables, how, reader)
                return
            from rota.pipeline.follow import follow_journal

            with tables.locked():
                for lines, lag_s in follow_journal(
                    spark, tables, how, reader=reader, every_s=every_s, refresh_every_s=refresh_every_s, decoder=decoder
                ):
                    tell(f"{lines:,} lines, {lag_s:.1f} s after the youngest was written")


@app.command()
def refresh(lake: Folder = LAKE, master: Master = "", memory: Memory = "2g", decoder: Decode = "") -> None:
    """Fold what was ingested since the last refresh into the facts."""
    with failures():
        tables = _existing(lake)
        with _spark(master, memory) as spark:
            _refresh(spark, tables, decoder)


@app.command()
def backfill(lake: Folder = LAKE, master: Master = "", memory: Memory = "2g", decoder: Decode = "") -> None:
    """Fold everything anew, beside the facts that are there, and switch when all is done."""
    with failures():
        from rota.pipeline.gold import backfill as fold_all

        tables = _existing(lake)
        with _spark(master, memory) as spark, tables.locked(), _busy("folding the whole journal"):
            done = fold_all(spark, tables, decoder=decoder)
    tell(f"{sum(done.rows.values()):,} facts, now in {tables.build}")


@app.command()
def advise(
    lake: Folder = LAKE,
    master: Master = "",
    memory: Memory = "2g",
    strategy: Annotated[
        list[str] | None, typer.Option("--assignor", help="Which strategies; may be given several times.")
    ] = None,
    decoder: Decode = "",
) -> None:
    """Replay the history of every group's members through other strategies: moves, pauses, evenness."""
    with failures():
        tables = _existing(lake)
        with _spark(master, memory) as spark:
            _advise(spark, tables, decoder, strategy)


@app.command()
def timeouts(
    context: typer.Context,
    lake: Folder = LAKE,
    allowed: Annotated[float, typer.Option(min=0, help="False expiries per member and day that are fine.")] = 0.01,
    master: Master = "",
    memory: Memory = "2g",
    output: OutputFormat = None,
) -> None:
    """Say which session timeout each group should have, from how regularly its members were heard."""
    with failures():
        from dataclasses import asdict

        from rota.pipeline.timeouts import advise_timeouts

        tables = _existing(lake)
        with _spark(master, memory) as spark, _busy("adding histograms up"):
            items = [asdict(each) for each in advise_timeouts(spark, tables, allowed)]
    columns = ("namespace", "group_id", "session_timeout_ms", "recommended_ms", "longest_gap_ms", "gaps")
    print_items(items, shared(context, output=output).output, columns=columns, name="group_id")


@app.command()
def report(lake: Folder = LAKE, out: Out = OUT, days: Days = 7.0, master: Master = "", memory: Memory = "2g") -> None:
    """Write the report: one HTML page, the same as Markdown, and a CSV for each of its tables."""
    with failures():
        tables = _existing(lake)
        with _spark(master, memory) as spark:
            _report(spark, tables, out, days)


@app.command()
def audit(
    context: typer.Context,
    lake: Folder = LAKE,
    master: Master = "",
    memory: Memory = "2g",
    output: OutputFormat = None,
) -> None:
    """Check the promises of the protocol over the whole history; ends with 1 if one was broken.

    Every group is replayed with the service's own core, and all facts are folded anew and compared.
    """
    with failures():
        from rota.pipeline.audit import audit as check

        tables = _existing(lake)
        with _spark(master, memory) as spark, _busy("replaying the history"):
            done = check(spark, tables)
    tell(f"{done.lines:,} lines of {done.groups:,} groups, {done.tables} tables, {len(done.findings)} findings")
    columns = ("check", "shard_id", "namespace", "group_id", "seq", "text")
    if done.findings:
        items = [each._asdict() for each in done.findings]
        print_items(items, shared(context, output=output).output, columns=columns, name="text")
        raise CommandFailed("the history does not hold together")


@app.command()
def compact(
    lake: Folder = LAKE,
    keep_days: Annotated[
        float, typer.Option(min=0, help="Drop lines of bronze that are older, once they are folded; 0 keeps all.")
    ] = 0,
    vacuum_hours: Annotated[float, typer.Option(min=0, help="Delete files that no table has used for so long.")] = 168,
) -> None:
    """Make few files of many, drop what is old, and delete what no table uses. Needs no Spark."""
    with failures():
        from rota.pipeline.upkeep import compact_lake

        tables = _existing(lake)
        with tables.locked():
            for line in compact_lake(tables, keep_days=keep_days, vacuum_hours=vacuum_hours):
                tell(line)


@app.command()
def submit(
    master: Annotated[str, typer.Option("--master", help="The cluster.")] = "spark://spark:7077",
    archive: Annotated[
        str, typer.Option(help="The packed environment: deploy/spark/pack.sh makes it.")
    ] = "rota-env.tar.gz",
    lake: Folder = LAKE,
    steps: Annotated[
        list[str] | None, typer.Option("--step", metavar="COMMAND", help="Commands of `rota pipeline`.")
    ] = None,
) -> None:
    """Print the lines of a shell that run the pipeline on a cluster; deploy/spark has what Kubernetes needs.

    The driver runs in the packed environment, too, and needs nothing of Rota: `rota pipeline submit … | bash -e`.
    """
    import shlex

    packed = shlex.quote(archive)
    common = shlex.join(["--master", master, "--archives", f"{archive}#environment"])
    # Whoever plans looks for Python where executors have it: below the folder that it runs in.
    print(f"mkdir -p environment && tar --extract --gzip --file {packed} --directory environment")
    print("export PYSPARK_PYTHON=./environment/bin/python")
    for step in steps or ["ingest --once", "refresh"]:
        # The URL may hold a password: the shell that runs the line puts it in, and Spark is told not to show it.
        print(f'spark-submit {common} --conf spark.executorEnv.ROTA_STORE="$ROTA_STORE" \\')
        print("  --conf 'spark.redaction.regex=(?i)secret|password|token|ROTA_STORE' \\")
        print(f"  environment/rota_main.py pipeline {step} --lake {shlex.quote(str(lake))}")


# --- what the commands have in common ---------------------------------------------------------------


def _checked(url: str, folder: Path, format_: str, *, skip_pruned: bool = False) -> tuple[Ingest, str]:
    """How to read the journal, and its incarnation. What can be known to fail fails here, before anything is made."""
    from rota.pipeline.bronze import Ingest, behind_pruned
    from rota.pipeline.journal import open_journal
    from rota.pipeline.lake import FORMATS, Lake
    from rota.pipeline.positions import Position
    from rota.pipeline.schema_check import check_schema

    if format_ not in FORMATS:
        raise CommandFailed(f"--format is one of {', '.join(FORMATS)}", Exit.USAGE)
    journal = open_journal(url)
    check_schema(journal)
    heads = journal.heads()
    made = (folder / "lake.json").is_file()
    done = Lake.open(folder).ingested()[1] if made else Position(heads.incarnation, {})
    heads.check(behind_pruned(done, heads) if skip_pruned else done)
    return Ingest(journal, {"urlEnv": "ROTA_STORE"}, skip_pruned=skip_pruned), heads.incarnation


def _made(folder: Path, format_: str, incarnation: str) -> Lake:
    """The tables, made where there are none yet."""
    from rota.pipeline.lake import Lake

    return Lake.create(folder, format_, incarnation)


def _hand_over(url: str) -> str:
    """Put the URL where Spark's workers find it. Options show in plans, and it may hold a password."""
    os.environ["ROTA_STORE"] = url
    return url


def _ingest_once(spark: SparkSession, tables: Lake, how: Ingest, reader: str) -> None:
    from rota.pipeline.follow import leave_bookmark

    with tables.locked(), _busy("reading the journal") as progress:
        done = how.run(spark, tables, progress)
    leave_bookmark(how.journal, reader, done.position, tell)
    tell(f"{done.lines:,} lines read; batch {done.batch}")


def _refresh(spark: SparkSession, tables: Lake, decoder: str) -> None:
    from rota.pipeline.gold import refresh as fold

    with tables.locked(), _busy("folding"):
        done = fold(spark, tables, decoder=decoder)
    tell(f"{sum(done.rows.values()):,} facts added")


def _advise(spark: SparkSession, tables: Lake, decoder: str, strategies: list[str] | None = None) -> None:
    from rota.pipeline.advisor import STRATEGIES
    from rota.pipeline.advisor import advise as replay

    with tables.locked(), _busy("replaying assignments"):
        rows = replay(spark, tables, strategies=strategies or STRATEGIES, decoder=decoder)
    tell(f"{rows:,} assignments computed")


def _report(spark: SparkSession, tables: Lake, out: Path, days: float) -> None:
    from rota.pipeline.report import make_report

    with _busy("writing the report"):
        paths = make_report(spark, tables, days=days).write(out)
    print(paths[0])


def _existing(folder: Path) -> Lake:
    from rota.pipeline.lake import Lake

    return Lake.open(folder)


@contextmanager
def _spark(master: str, memory: str) -> Iterator[SparkSession]:
    from rota.pipeline.session import session

    with _busy("starting Spark"):
        entered = session(master, {"spark.driver.memory": memory})
        spark = entered.__enter__()
    try:
        yield spark
    finally:
        entered.__exit__(None, None, None)


@contextmanager
def _busy(what: str) -> Iterator[Any]:
    """Show that something goes on, and how far where that is known; gives what to call with done and all."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # While Spark starts, standard error is where its noise goes; what the person sees is another copy of it.
    with os.fdopen(os.dup(2), "w") as terminal:
        console = Console(file=terminal)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(what, total=None)
            yield lambda done, wanted: progress.update(task, completed=done, total=wanted)


@contextmanager
def failures() -> Iterator[None]:
    """What stops a pipeline becomes a line, also where a Spark task has raised it."""
    try:
        from rota.pipeline.failures import JournalUnreachable, PipelineFailed
        from rota.pipeline.spark_errors import told_by_spark
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
        message = told_by_spark(error)
        if message is None:
            raise
        raise CommandFailed(message) from error
