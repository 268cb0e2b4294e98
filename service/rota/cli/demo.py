"""`rota demo`: a demonstration that survives a kill -9; `rota simulate`: synthetic histories."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.members import LONGEST_SESSION_MS
from rota.cli.options import Namespace, Url, a_number, check_connection, shared
from rota.cli.output import print_notice
from rota.protocol.defaults import DEMO_SESSION_TIMEOUT_MS


def demo(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Count the words of all files below this folder; default: the project's README and sources.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=100, help="Number of processes that share the work.")] = 3,
    partitions: Annotated[int, typer.Option(min=1, max=1_000, help="Number of partitions of the work.")] = 12,
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of times that each file is counted; a larger number lasts longer.")
    ] = 2,
    session_timeout_ms: Annotated[
        int,
        typer.Option(
            min=1_000,
            max=LONGEST_SESSION_MS,
            help="Time without a heartbeat before a worker's share moves to the others.",
        ),
    ] = DEMO_SESSION_TIMEOUT_MS,
    kill: Annotated[bool, typer.Option(help="Kill a worker in the middle of its work.")] = True,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Watch processes share real work, lose one of them to kill -9, and continue.

    Starts a server on a temporary store if none is running at --url, and as many worker processes as asked. They count
    words, commit their progress, and one is killed. Ends with 0 only if every file was counted exactly once, the totals
    match a direct count, and no write of the killed worker was accepted after its fence.
    """
    from rota.demo.children import ChildFailed
    from rota.demo.story import Options, run_demo

    if kill and workers < 2:
        raise CommandFailed("--kill needs a second worker to take over: --workers 2 or more, or --no-kill", Exit.USAGE)
    options = shared(context, url, namespace)
    check_connection(options)
    chosen = Options(options.url, options.namespace, folder, workers, partitions, rounds, session_timeout_ms, kill)
    try:
        all_hold = run_demo(chosen)
    except ChildFailed as failed:
        raise CommandFailed(str(failed)) from failed
    if not all_hold:
        raise CommandFailed("a check has failed")


simulations = typer.Typer(no_args_is_help=True, help="Generate synthetic journals for testing.")


@simulations.callback()
def simulate() -> None:
    """Generate synthetic journals for testing."""


@simulations.command()
def journal(
    store: Annotated[
        str, typer.Option("--store", metavar="URL", help="A new store: sqlite:///PATH or postgresql://….")
    ],
    groups: Annotated[int, typer.Option(min=1, help="Number of groups in the fleet.")] = 50,
    days: Annotated[
        float,
        typer.Option(min=0.01, max=36_500, callback=a_number, help="Days of history; it ends now."),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed produces the same fleet and the same faults.")] = 1,
    shards: Annotated[int, typer.Option(min=1, max=1024, help="Number of shards of the store.")] = 64,
    processes: Annotated[int, typer.Option(min=0, help="Number of processes; 0 is one per core.")] = 0,
) -> None:
    """Fill a new store with the history of a fleet: deployments, crashes, pauses, flapping groups, progress.

    The service's own core decides every event, in virtual time, with the real strategies: `rota db verify` finds no
    differences. Roughly 20,000 events per group and day, about 15,000 events per second and core.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from rota.demo.workload.generate import Wanted, generate

    wanted = Wanted(store, groups, days, seed, int(time.time() * 1000), shards)
    columns = (TextColumn("shards"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[lines]:,} lines"))
    console = Console(stderr=True)
    silent = not console.is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=silent) as progress:
        task = progress.add_task("", total=shards, lines=0)
        done = generate(
            wanted,
            processes=processes,
            report=lambda finished, _all, lines: progress.update(task, completed=finished, lines=lines),
        )
    print_notice(f"{done.lines:,} lines of {groups} groups in {done.seconds:.1f} s")
