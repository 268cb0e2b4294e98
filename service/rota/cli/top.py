"""`rota top`: the groups of a namespace, live; groups in trouble first."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rota.cli.lists import AllNamespaces
from rota.cli.options import Namespace, OutputFormat, Url, a_number, shared
from rota.cli.output import print_items


def top(
    context: typer.Context,
    count: Annotated[int, typer.Option("--rows", "-n", min=1, max=200, help="Number of groups to show.")] = 20,
    interval: Annotated[
        float, typer.Option(min=0.1, callback=a_number, metavar="SECONDS", help="Seconds between two refreshes.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; the default without a terminal.")] = False,
    all_namespaces: AllNamespaces = False,
    url: Url = None,
    namespace: Namespace = None,
    output: OutputFormat = None,
) -> None:
    """Show groups live: first those in trouble, the worst first, each with the next command to type.

    Then come those that rebalance, then the largest.
    """
    from rota.cli.board import columns, rows, show_live
    from rota.cli.calls import Server

    options = shared(context, url, namespace, output)
    with Server(options) as server:
        if once or options.chosen or not sys.stdout.isatty():
            found = rows(server, count, all_namespaces=all_namespaces)
            shown = columns(all_namespaces=all_namespaces)
            print_items(found, options.output, columns=shown, name="group_id")
        else:
            show_live(server, count, interval, all_namespaces=all_namespaces)
