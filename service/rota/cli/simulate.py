"""`rota simulate`: synthetic histories."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from rota.cli.options import a_number
from rota.cli.output import print_notice

app = typer.Typer(no_args_is_help=True, help="Generate synthetic journals for testing.")


@app.callback()
def simulate() -> None:
    """Generate synthetic journals for testing."""


@app.command()
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
