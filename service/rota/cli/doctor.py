"""`rota doctor`: checks of a server and its groups."""

from __future__ import annotations

import typer

from rota.cli.exits import CommandFailed
from rota.cli.options import Namespace, OutputFormat, Url, shared
from rota.cli.output import print_items


def doctor(context: typer.Context, url: Url = None, namespace: Namespace = None, output: OutputFormat = None) -> None:
    """Check the health of a server: readiness, store, Redis, shards, clock, certificates and groups.

    Ends with 1 if a check fails. Runbooks: docs/runbooks.
    """
    from rota.cli.calls import Server
    from rota.cli.examination import examine

    options = shared(context, url, namespace, output)
    with Server(options) as server:
        checks = list(examine(server))
    items = [{"check": each.check, "ok": each.ok, "found": each.found} for each in checks]
    print_items(items, options.output, columns=("check", "ok", "found"), name="check")
    if bad := [each.check for each in checks if not each.ok]:
        raise CommandFailed(f"failed checks: {', '.join(bad)}")
