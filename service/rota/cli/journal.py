"""`rota journal`: the readers of the journal, and deletion of events that all of them have read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import OutputFormat, Store, Yes, confirm
from rota.cli.output import Output, print_items, print_notice
from rota.cli.times import ago

if TYPE_CHECKING:
    from rota.storage.pruning import Reader

app = typer.Typer(no_args_is_help=True, help="Manage a store's journal: its readers and its retention.")


@app.command()
def readers(
    store: Store = "",
    add: Annotated[
        list[str] | None, typer.Option(metavar="READER", help="Add a reader that pruning waits for.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="READER", help="Remove a reader.")] = None,
    output: OutputFormat = Output.TABLE,
) -> None:
    """List the readers of the journal, and the number of events that each has yet to read. `rota pipeline` adds
    itself.

    Without a reader all lines that are old enough are pruned.
    """
    from rota.storage.pruning import forget_reader, list_readers, register_reader

    for name in add or ():
        print_notice(f"{name} was added" if asyncio.run(register_reader(store, name)) else f"{name} already exists")
    for name in remove or ():
        if not asyncio.run(forget_reader(store, name)):
            raise CommandFailed(f"the journal has no reader named {name}", Exit.NOT_FOUND)
    found = asyncio.run(list_readers(store))
    columns = ("reader", "unread", "read")
    print_items([_item(each) for each in found], output, columns=columns, name="reader")


def _item(reader: Reader) -> dict[str, object]:
    return {
        "reader": reader.name,
        "unread": reader.unread,
        "read": "another journal" if reader.other_journal else ago(reader.updated_at_ms),
        "updated_at_ms": reader.updated_at_ms,
        "positions": {str(shard_id): seq for shard_id, seq in sorted(reader.positions.items())},
    }


@app.command()
def prune(
    keep_days: Annotated[int, typer.Option(min=1, max=36_500, help="Number of whole days (UTC) before today to keep.")],
    store: Store = "",
    dry_run: Annotated[bool, typer.Option(help="Only print what would be deleted.")] = False,
    yes: Yes = False,
) -> None:
    """Delete the journal's old lines, except those that a reader has not yet read. Servers may run.

    The current state (groups, members, offsets) is not changed. `rota db verify` can then check only the remaining
    lines. Run it once a day. On Postgres it requires the login that owns the tables.
    """
    from rota.storage.pruning import prune as delete_old_lines

    confirm(f"Delete the lines of the journal that are older than {keep_days} days?", yes=yes or dry_run)
    done = asyncio.run(delete_old_lines(store, keep_days, dry_run=dry_run))
    print_notice(f"{done.lines:,} lines of {len(done.up_to)} shards {'would be' if dry_run else 'were'} deleted")
    if done.held_by:
        print_notice(f"older lines stay until they are read by {', '.join(done.held_by)}; see `rota journal readers`")
