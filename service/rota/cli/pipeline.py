"""`rota pipeline`: the journal as tables, reports and advice, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rota.cli import pipeline_steps as steps
from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import OutputFormat, Store, a_number
from rota.cli.output import Output, print_items, print_notice

app = typer.Typer(no_args_is_help=True, help="Build tables, reports and advice from the journal, with Spark.")

Folder = Annotated[
    str,
    typer.Option(
        "--lake",
        envvar="ROTA_LAKE",
        metavar="DIR",
        help="The folder of the tables, in any file system that this Spark knows.",
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
Reader = Annotated[
    str, typer.Option(help="Name of this journal reader, for which pruning waits; empty: do not register.")
]
SkipPruned = Annotated[bool, typer.Option(help="Continue after lines that were pruned before they were read.")]

LAKE, OUT = "rota-lake", Path("rota-report")


@app.command()
def doctor(store: Store = "", output: OutputFormat = Output.TABLE) -> None:
    """Check whether the pipeline can run here: Java, Delta, packages, memory, the journal and the rights to it."""
    with steps.failures():
        from rota.pipeline.doctor import examine

        checks = list(examine(store))
    items = [{"check": each.name, "ok": each.ok, "found": each.found} for each in checks]
    print_items(items, output, columns=("check", "ok", "found"), name="check")
    if bad := [each.name for each in checks if not each.ok]:
        raise CommandFailed(f"not ready: {', '.join(bad)}")


@app.command()
def run(
    store: Store = "",
    lake: Folder = LAKE,
    out: Out = OUT,
    days: Days = 7.0,
    master: Master = "",
    memory: Memory = "2g",
    reader: Reader = "pipeline",
    skip_pruned: SkipPruned = False,
    decoder: Decode = "",
) -> None:
    """Read the journal's new lines into the tables, replay the strategies, and write the report.

    If it is killed at any moment, the next run finishes its work: no line and no fact is lost or written twice.
    """
    with steps.failures(lake):
        options = steps.checked(store, skip_pruned=skip_pruned)
        with steps.opened(lake, master, memory) as tables:
            steps.read(tables, options, reader, decoder)
            steps.advise(tables, decoder)
            steps.report(tables, out, days)


@app.command()
def follow(
    store: Store = "",
    lake: Folder = LAKE,
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, callback=a_number, help="Seconds between the starts of two batches.")
    ] = 60.0,
    master: Master = "",
    memory: Memory = "2g",
    reader: Reader = "pipeline",
    skip_pruned: SkipPruned = False,
    decoder: Decode = "",
    metrics: Annotated[str, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there.")] = "",
    ui_port: Annotated[int, typer.Option(min=0, help="Serve Spark's own pages at this port; 0 serves none.")] = 0,
) -> None:
    """Read new lines into the tables for as long as it runs.

    It ends with an error if the store or the tables cannot be reached: let a supervisor start it again.
    """
    with steps.failures(lake):
        options = steps.checked(store, skip_pruned=skip_pruned)
        with steps.metrics_served(metrics) as observe, steps.opened(lake, master, memory, ui_port) as tables:
            steps.follow(tables, options, reader, decoder, every_s, observe)


@app.command()
def advise(
    lake: Folder = LAKE,
    master: Master = "",
    memory: Memory = "2g",
    strategy: Annotated[
        list[str] | None, typer.Option("--assignor", help="Which strategies; may be given several times.")
    ] = None,
    group: Annotated[str, typer.Option(help="Show the prices of this group only.")] = "",
    decoder: Decode = "",
    output: OutputFormat = Output.TABLE,
) -> None:
    """Replay the history of every group, and show the cost of other strategies, timeouts and static membership.

    Paused units (during a rebalance) and waiting units (without a member) are given in units times seconds.
    """
    with steps.failures(lake):
        from rota.pipeline.advisor import changes

        with steps.opened(lake, master, memory) as tables:
            steps.advise(tables, decoder, strategy)
            items = [each._asdict() for each in changes(tables, group)]
    if not items:
        raise CommandFailed("there is no such advice: check the name of the group")
    columns = ("group_id", "change", "value", "rebalances", "join_phases", "moves", "paused_unit_s", "waiting_unit_s")
    print_items(items, output, columns=columns, name="change")


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
    with steps.failures(lake):
        from rota.pipeline.period import parse_since

        try:
            from_then_on = parse_since(since) if since else None
        except ValueError as error:
            raise CommandFailed(f"--since: 2h, 30min or 2026-11-24T08:00, not {since!r}", Exit.USAGE) from error
        groups = [_group_name(name) for name in group or ()]
        with steps.opened(lake, master, memory) as tables:
            steps.report(tables, out, days, from_then_on, groups)


def _group_name(name: str) -> tuple[str, str]:
    """Split a group's name; without a slash its namespace is `default`."""
    namespace, slash, group_id = name.partition("/")
    return (namespace, group_id) if slash else ("default", name)


@app.command()
def audit(
    lake: Folder = LAKE,
    master: Master = "",
    memory: Memory = "2g",
    decoder: Decode = "",
    output: OutputFormat = Output.TABLE,
) -> None:
    """Check the promises of the protocol over the whole history; ends with 1 if one was broken.

    Every group is replayed with the service's own core, and all facts are folded anew and compared.
    """
    with steps.failures(lake):
        from rota.pipeline.audit import audit as check

        with steps.opened(lake, master, memory) as tables, steps.busy("replaying the history"):
            done = check(tables, decoder=decoder)
    print_notice(f"{done.lines:,} lines of {done.groups:,} groups, {done.tables} tables, {len(done.findings)} findings")
    columns = ("check", "shard_id", "namespace", "group_id", "seq", "text")
    if done.findings:
        items = [each._asdict() for each in done.findings]
        print_items(items, output, columns=columns, name="text")
        raise CommandFailed("the journal has contradictions")


@app.command()
def submit(
    master: Annotated[str, typer.Option("--master", help="The cluster.")] = "spark://spark:7077",
    archive: Annotated[
        str, typer.Option(help="The packed environment: deploy/spark/pack.sh makes it.")
    ] = "rota-env.tar.gz",
    lake: Folder = LAKE,
    command: Annotated[str, typer.Option("--step", metavar="COMMAND", help="Command of `rota pipeline`.")] = "run",
) -> None:
    """Print the shell commands that run the pipeline on a cluster; deploy/spark has the files for Kubernetes.

    The driver also runs in the packed environment, and needs no installation of Rota: `rota pipeline submit … | bash
    -e`.
    """
    import shlex

    with steps.failures(lake):
        from rota.pipeline.java import delta_jars
        from rota.pipeline.session import cache_folder

        jars = ",".join(map(str, delta_jars(cache_folder())))
    packed = shlex.quote(archive)
    common = shlex.join(["--master", master, "--archives", f"{archive}#environment", "--jars", jars])
    # The driver looks for Python at the executors' path, below its working folder.
    print(f"mkdir -p environment && tar --extract --gzip --file {packed} --directory environment")
    print("export PYSPARK_PYTHON=./environment/bin/python")
    # The URL may contain a password, so the shell inserts it, and Spark is configured to redact it.
    print(f'spark-submit {common} --conf spark.executorEnv.ROTA_STORE="$ROTA_STORE" \\')
    print("  --conf 'spark.redaction.regex=(?i)secret|password|token|ROTA_STORE' \\")
    print(f"  environment/rota_main.py pipeline {command} --lake {shlex.quote(lake)}")
