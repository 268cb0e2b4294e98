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
    str, typer.Option("--master", envvar="ROTA_SPARK_MASTER", help="Spark master; under spark-submit it is known.")
]
Memory = Annotated[str, typer.Option("--memory", help="Memory of a local Spark.")]
Decode = Annotated[
    str,
    typer.Option(
        metavar="TYPE=MODULE:FUNCTION",
        help="Function that decodes the assignments of a protocol type: bytes to names of units. Several with commas.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the report.", file_okay=False)]
Days = Annotated[float, typer.Option(min=0.01, callback=a_number, help="Days that the report covers.")]
Format = Annotated[str, typer.Option("--format", help="Format of new tables: delta, or parquet for plain files.")]
Reader = Annotated[
    str, typer.Option(help="Name among the journal's readers: pruning waits for it. Empty registers none.")
]
KeepDays = Annotated[
    float, typer.Option(min=0, help="Compaction drops lines of bronze that are older, once folded; 0 keeps all.")
]
SkipPruned = Annotated[bool, typer.Option(help="Go on behind lines that were pruned before they were read.")]

LAKE, OUT = "rota-lake", Path("rota-report")


@app.command()
def doctor(context: typer.Context, store: Store = None, lake: Folder = LAKE, output: OutputFormat = None) -> None:
    """Say whether the pipeline can run here: Java, packages, memory, the journal and our rights to it, the tables."""
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
        float, typer.Option("--compact-every", min=0, help="With --follow: seconds between two compactions; 0: none.")
    ] = 3600.0,
    keep_days: KeepDays = 0,
    skip_pruned: SkipPruned = False,
    master: Master = "",
    memory: Memory = "2g",
    format_: Format = "delta",
    reader: Reader = "pipeline",
    decoder: Decode = "",
    metrics: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With --follow: serve figures for Prometheus at /metrics there.")
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
        bool, typer.Option("--forget-dropped", help="Also where facts go for good, as their lines have been dropped.")
    ] = False,
    master: Master = "",
    memory: Memory = "2g",
    decoder: Decode = "",
) -> None:
    """Fold everything anew; the facts that are there are replaced when all is done."""
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
    """Replay the history of every group's members through other strategies: moves, pauses, evenness."""
    with steps.failures():
        tables = steps.existing(lake)
        with steps.workers_when_needed(master, memory) as workers:
            steps.advise(workers, tables, decoder, strategy)


@app.command()
def timeouts(
    context: typer.Context,
    lake: Folder = LAKE,
    allowed: Annotated[float, typer.Option(min=0, help="False expiries per member and day that are fine.")] = 0.01,
    master: Master = "",
    memory: Memory = "2g",
    output: OutputFormat = None,
) -> None:
    """Say which session timeout each group should have, from how regularly its heartbeats came."""
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
    """Show the price of other strategies, static membership and other session timeouts, as `advise` computed it last.

    What stands still while members agree (paused) or waits for a member (waiting) is in units times seconds.
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

    It begins with present troubles, judged at the journal's end, and with the longest rebalances.
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
    """A name without a slash is a group of the namespace `default`."""
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
    vacuum_hours: Annotated[float, typer.Option(min=0, help="Delete files that no table has used for so long.")] = 168,
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
    """Print the lines of a shell that run the pipeline on a cluster; deploy/spark has what Kubernetes needs.

    The driver runs in the packed environment, too, and needs nothing of Rota: `rota pipeline submit … | bash -e`.
    """
    import shlex

    packed = shlex.quote(archive)
    common = shlex.join(["--master", master, "--archives", f"{archive}#environment"])
    # The driver looks for Python where executors have it: below the folder that it runs in.
    print(f"mkdir -p environment && tar --extract --gzip --file {packed} --directory environment")
    print("export PYSPARK_PYTHON=./environment/bin/python")
    for step in commands or ["ingest --once", "refresh"]:
        # The URL may hold a password: the shell that runs the line puts it in, and Spark is set not to show it.
        print(f'spark-submit {common} --conf spark.executorEnv.ROTA_STORE="$ROTA_STORE" \\')
        print("  --conf 'spark.redaction.regex=(?i)secret|password|token|ROTA_STORE' \\")
        print(f"  environment/rota_main.py pipeline {step} --lake {shlex.quote(lake)}")
