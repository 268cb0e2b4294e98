"""`rota pipeline`: the journal as tables, reports and advice, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli import pipeline_steps as steps
from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import OutputFormat, Store, a_number, shared, store_url
from rota.cli.output import print_items, print_notice

if TYPE_CHECKING:
    pass

app = typer.Typer(no_args_is_help=True, help="Build tables, reports and advice from the journal, with Spark.")

Folder = Annotated[
    str,
    typer.Option(
        "--lake",
        envvar="ROTA_LAKE",
        metavar="DIR",
        help="The folder of the tables, or s3://…, gs://…, abfss://… in an object store.",
    ),
]
Master = Annotated[
    str, typer.Option("--master", envvar="ROTA_SPARK_MASTER", help="Spark master; spark-submit sets it.")
]
Memory = Annotated[str, typer.Option("--memory", help="Memory of a local Spark.")]
Decode = Annotated[
    str,
    typer.Option(
        metavar="TYPE=MODULE:FUNCTION",
        help="Function that decodes a protocol type's assignments: bytes to names of units; several with commas.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the report.", file_okay=False)]
Days = Annotated[float, typer.Option(min=0.01, callback=a_number, help="Days that the report covers.")]
Format = Annotated[str, typer.Option("--format", help="Format of new tables: delta, or parquet for plain files.")]
Reader = Annotated[
    str, typer.Option(help="Name of this journal reader, for which pruning waits; empty: do not register.")
]
KeepDays = Annotated[
    float, typer.Option(min=0, help="Compaction deletes older lines of bronze after they are folded; 0 keeps all.")
]
SkipPruned = Annotated[bool, typer.Option(help="Continue after lines that were pruned before they were read.")]

LAKE, OUT = "rota-lake", Path("rota-report")


@app.command()
def doctor(context: typer.Context, store: Store = None, lake: Folder = LAKE, output: OutputFormat = None) -> None:
    """Check whether the pipeline can run here: Java, packages, memory, the journal and the rights to it, the tables."""
    with steps.failures():
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
    skip_pruned: SkipPruned = False,
    decoder: Decode = "",
) -> None:
    """Run all steps: ingest new events, fold them, run the advisor, and write the report."""
    with steps.failures():
        how, incarnation = steps.checked(steps.hand_over(store_url(store)), lake, format_, skip_pruned=skip_pruned)
        with steps.spark_session(master, memory) as spark:
            tables = steps.made(lake, format_, incarnation)
            steps.ingest_once(spark, tables, how, reader)
            steps.refresh(spark, tables, decoder)
            steps.advise(spark, tables, decoder)
            steps.report(spark, tables, out, days)


@app.command()
def ingest(
    store: Store = None,
    lake: Folder = LAKE,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Keep running, and keep the facts up to date.")
    ] = False,
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, callback=a_number, help="With --follow: seconds between two reads.")
    ] = 5.0,
    refresh_every_s: Annotated[
        float,
        typer.Option(
            "--refresh-every", min=0.1, callback=a_number, help="With --follow: seconds between two refreshes."
        ),
    ] = 60.0,
    compact_every_s: Annotated[
        float,
        typer.Option("--compact-every", min=0, help="With --follow: seconds between two compactions; 0: never."),
    ] = 3600.0,
    keep_days: KeepDays = 0,
    skip_pruned: SkipPruned = False,
    master: Master = "",
    memory: Memory = "2g",
    format_: Format = "delta",
    reader: Reader = "pipeline",
    decoder: Decode = "",
    metrics: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="With --follow: serve Prometheus metrics at this address."),
    ] = "",
) -> None:
    """Copy the journal's new events. If killed at any moment, it neither loses nor duplicates an event."""
    with steps.failures():
        how, incarnation = steps.checked(steps.hand_over(store_url(store)), lake, format_, skip_pruned=skip_pruned)
        with steps.workers_when_needed(master, memory) as workers:
            tables = steps.made(lake, format_, incarnation)
            if not follow:
                steps.ingest_once(workers, tables, how, reader)
                return
            from rota.pipeline.follow import Follower

            follower = Follower(
                how,
                reader=reader,
                every_s=every_s,
                refresh_every_s=refresh_every_s,
                compact_every_s=compact_every_s,
                keep_days=keep_days,
                decoder=decoder,
            )
            with steps.metrics_served(follower.meters, metrics):
                for lines, lag_s, message in follower.looks(workers, tables):
                    print_notice(message or f"{lines:,} lines, {lag_s:.1f} s after the youngest was written")


@app.command()
def refresh(lake: Folder = LAKE, master: Master = "", memory: Memory = "2g", decoder: Decode = "") -> None:
    """Fold the events ingested since the last refresh into the facts."""
    with steps.failures():
        tables = steps.existing(lake)
        with steps.workers_when_needed(master, memory) as workers:
            steps.refresh(workers, tables, decoder)


@app.command()
def backfill(
    lake: Folder = LAKE,
    forget_dropped: Annotated[
        bool, typer.Option("--forget-dropped", help="Also if facts are lost because their lines have been deleted.")
    ] = False,
    master: Master = "",
    memory: Memory = "2g",
    decoder: Decode = "",
) -> None:
    """Fold all lines anew; the new facts replace the old ones when all are ready."""
    with steps.failures():
        from rota.pipeline.gold import backfill as fold_all

        tables = steps.existing(lake, older=True)
        with steps.workers_when_needed(master, memory) as workers, tables.locked(), steps.busy("folding all lines"):
            done = fold_all(workers, tables, decoder=decoder, forget_dropped=forget_dropped)
    print_notice(f"{sum(done.rows.values()):,} facts, as of fold {done.fold}")


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
    """Replay the history of every group's members with other strategies, and compare moves, pauses and evenness."""
    with steps.failures():
        tables = steps.existing(lake)
        with steps.workers_when_needed(master, memory) as workers:
            steps.advise(workers, tables, decoder, strategy)


@app.command()
def timeouts(
    context: typer.Context,
    lake: Folder = LAKE,
    allowed: Annotated[float, typer.Option(min=0, help="Accepted false expiries per member and day.")] = 0.01,
    master: Master = "",
    memory: Memory = "2g",
    output: OutputFormat = None,
) -> None:
    """Recommend a session timeout for each group, from the intervals of its heartbeats."""
    with steps.failures():
        from rota.pipeline.timeouts import advise_timeouts

        tables = steps.existing(lake)
        with steps.spark_session(master, memory) as spark, steps.busy("reading the advice"):
            items = [each._asdict() for each in advise_timeouts(spark, tables, allowed)]
    columns = ("namespace", "group_id", "session_timeout_ms", "recommended_ms", "longest_gap_ms", "gaps", "late")
    print_items(items, shared(context, output=output).output, columns=columns, name="group_id")


@app.command("what-ifs")
def what_ifs(
    context: typer.Context,
    lake: Folder = LAKE,
    group: Annotated[str, typer.Option(help="Only this group.")] = "",
    master: Master = "",
    memory: Memory = "2g",
    output: OutputFormat = None,
) -> None:
    """Show the cost of other strategies, static membership and other session timeouts, from the last `advise`.

    Paused units (during a rebalance) and waiting units (without a member) are given in units times seconds.
    """
    with steps.failures():
        from rota.pipeline.advisor import changes

        tables = steps.existing(lake)
        with steps.spark_session(master, memory) as spark, steps.busy("reading the advice"):
            items = [each._asdict() for each in changes(spark, tables, group)]
    if not items:
        raise CommandFailed("there is no such advice: run `rota pipeline advise`, and check the name of the group")
    columns = ("group_id", "change", "value", "rebalances", "join_phases", "moves", "paused_unit_s", "waiting_unit_s")
    print_items(items, shared(context, output=output).output, columns=columns, name="change")


@app.command()
def report(
    lake: Folder = LAKE,
    out: Out = OUT,
    days: Days = 7.0,
    since: Annotated[
        str,
        typer.Option(metavar="WHEN", help="Instead of --days: 2h, 30min, or 2026-11-24T08:00 in UTC."),
    ] = "",
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAMESPACE/GROUP", help="Only this group; may be given several times.")
    ] = None,
    master: Master = "",
    memory: Memory = "2g",
) -> None:
    """Write the report: one HTML page, the same as Markdown, and a CSV for each of its tables.

    It starts with current troubles at the end of the journal, and with the longest rebalances.
    """
    with steps.failures():
        from rota.pipeline.period import parse_since

        try:
            from_then_on = parse_since(since) if since else None
        except ValueError as error:
            raise CommandFailed(f"--since: 2h, 30min or 2026-11-24T08:00, not {since!r}", Exit.USAGE) from error
        groups = [_group_name(name) for name in group or ()]
        tables = steps.existing(lake)
        with steps.spark_session(master, memory) as spark:
            steps.report(spark, tables, out, days, from_then_on, groups)


def _group_name(name: str) -> tuple[str, str]:
    """Split a group's name; without a slash its namespace is `default`."""
    namespace, slash, group_id = name.partition("/")
    return (namespace, group_id) if slash else ("default", name)


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
    with steps.failures():
        from rota.pipeline.audit import audit as check

        tables = steps.existing(lake)
        with steps.spark_session(master, memory) as spark, steps.busy("replaying the history"):
            done = check(spark, tables)
    print_notice(f"{done.lines:,} lines of {done.groups:,} groups, {done.tables} tables, {len(done.findings)} findings")
    columns = ("check", "shard_id", "namespace", "group_id", "seq", "text")
    if done.findings:
        items = [each._asdict() for each in done.findings]
        print_items(items, shared(context, output=output).output, columns=columns, name="text")
        raise CommandFailed("the journal has contradictions")


@app.command()
def compact(
    lake: Folder = LAKE,
    keep_days: KeepDays = 0,
    vacuum_hours: Annotated[float, typer.Option(min=0, help="Delete files unused by tables for so long.")] = 168,
) -> None:
    """Merge small files, drop old events, and delete files that no table uses. Needs no Spark."""
    with steps.failures():
        from rota.pipeline.upkeep import compact_lake

        tables = steps.existing(lake)
        with tables.locked():
            for line in compact_lake(tables, keep_days=keep_days, vacuum_hours=vacuum_hours):
                print_notice(line)


@app.command()
def submit(
    master: Annotated[str, typer.Option("--master", help="The cluster.")] = "spark://spark:7077",
    archive: Annotated[
        str, typer.Option(help="The packed environment: deploy/spark/pack.sh makes it.")
    ] = "rota-env.tar.gz",
    lake: Folder = LAKE,
    commands: Annotated[
        list[str] | None, typer.Option("--step", metavar="COMMAND", help="Commands of `rota pipeline`.")
    ] = None,
) -> None:
    """Print the shell commands that run the pipeline on a cluster; deploy/spark has the files for Kubernetes.

    The driver also runs in the packed environment, and needs no installation of Rota: `rota pipeline submit … | bash
    -e`.
    """
    import shlex

    packed = shlex.quote(archive)
    common = shlex.join(["--master", master, "--archives", f"{archive}#environment"])
    # The driver looks for Python at the executors' path, below its working folder.
    print(f"mkdir -p environment && tar --extract --gzip --file {packed} --directory environment")
    print("export PYSPARK_PYTHON=./environment/bin/python")
    for step in commands or ["ingest --once", "refresh"]:
        # The URL may contain a password, so the shell inserts it, and Spark is configured to redact it.
        print(f'spark-submit {common} --conf spark.executorEnv.ROTA_STORE="$ROTA_STORE" \\')
        print("  --conf 'spark.redaction.regex=(?i)secret|password|token|ROTA_STORE' \\")
        print(f"  environment/rota_main.py pipeline {step} --lake {shlex.quote(lake)}")
