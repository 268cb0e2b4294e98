"""`rota db`: the schema of a store, and the consistency of its journal and rows."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli import copies
from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import OutputFormat, Store, a_number, shared, store_url
from rota.cli.output import Output, print_item, print_notice
from rota.protocol.defaults import STORE_WAIT_MS
from rota.protocol.ids import NO_SHARD

if TYPE_CHECKING:
    from rota.storage.verify import ShardReport

WAIT_POLL_S = 0.5

app = typer.Typer(no_args_is_help=True, help="Manage a store: its schema, its journal, and copies of it.")
app.command()(copies.backup)
app.command()(copies.restore)
app.command()(copies.restored)
app.command()(copies.copy)


@app.command()
def upgrade(store: Store = None) -> None:
    """Create the store's schema, or upgrade it to this release.

    One transaction; no change if it is up to date. On Postgres, servers of the former release may continue to run; on
    SQLite the server must be stopped (it upgrades by itself when it starts).
    """
    from rota.storage.migrate import upgrade as upgrade_store

    status = asyncio.run(upgrade_store(store_url(store)))
    print_notice(f"the schema is at {status.current}" + (", of a later release" if status.is_newer else ""))


@app.command()
def check(context: typer.Context, store: Store = None, output: OutputFormat = None) -> None:
    """Print the version of the store's schema; ends with 1 if it must be upgraded first. Changes nothing."""
    from rota.storage.migrate import check as check_store

    status = asyncio.run(check_store(store_url(store)))
    item = {"current": status.current, "head": status.head, "usable": status.usable, "newer": status.is_newer}
    print_item(item, shared(context, output=output).output, name="current")
    if not status.usable:
        raise CommandFailed("the schema is not this release's; run `rota db upgrade`")


@app.command()
def wait(
    store: Store = None,
    timeout: Annotated[
        float, typer.Option(min=0, callback=a_number, metavar="SECONDS", help="Maximum time to wait.")
    ] = STORE_WAIT_MS / 1000,
) -> None:
    """Wait until another process has upgraded the store to this release, then end with 0; with 69 after the timeout.

    For use with a job that runs `rota db upgrade`: a program that starts after this command finds a usable schema. Also
    waits for a store that cannot be reached yet. Changes nothing.
    """
    current = asyncio.run(_until_usable(store_url(store), monotonic() + timeout))
    print_notice(f"the schema is at {current}")


async def _until_usable(url: str, give_up_at: float) -> str | None:
    from rota.core.replica.ports import StoreUnavailable
    from rota.storage.migrate import check as check_store

    while True:
        try:
            status = await check_store(url)
        except StoreUnavailable as error:
            missing = str(error)
        else:
            if status.usable:
                return status.current
            missing = f"the schema is at {status.current}, not at {status.head}"
        if monotonic() > give_up_at:
            raise CommandFailed(f"`rota db upgrade` was not run in time: {missing}", Exit.UNAVAILABLE)
        await asyncio.sleep(WAIT_POLL_S)


@app.command()
def verify(context: typer.Context, store: Store = None, output: OutputFormat = None) -> None:
    """Compare the whole journal with the rows, and the schema with the release's; ends with 1 on any difference.

    Checks that no line is missing, that epochs never decrease, that no generation is opened twice, and that the groups,
    members, offsets and topics of the store match the journal exactly. Also checks that the schema has exactly this
    release's objects: a foreign trigger, table, rule or function, or a changed definition, is a difference. Only reads;
    a server may run. In a shard with pruned events only the remaining ones are checked.
    """
    reports, objects = asyncio.run(_verify(store_url(store)))
    differences = [f"shard {report.shard_id}: {each}" for report in reports for each in report.differences]
    for difference in (*differences, *(f"the schema: {each}" for each in objects)):
        print_notice(difference)
    item = {
        "shards": sum(report.shard_id != NO_SHARD for report in reports),
        "events": sum(report.events for report in reports),
        "groups": sum(report.groups for report in reports),
        "pruned": sum(report.pruned for report in reports),
        "differences": len(differences) + len(objects),
    }
    chosen = shared(context, output=output).output
    print_item(item, Output.TABLE if chosen is Output.NAME else chosen, name="shards")
    if differences:
        raise CommandFailed("the journal and the rows do not agree")
    if objects:
        raise CommandFailed("the schema is not this release's: another program has changed it")


async def _verify(url: str) -> tuple[list[ShardReport], list[str]]:
    from rota.storage.objects import check_objects
    from rota.storage.verify import verify as verify_store

    return [report async for report in verify_store(url)], await check_objects(url)
