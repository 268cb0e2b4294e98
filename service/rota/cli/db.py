"""`rota db`: the schema of a store, the consistency of its journal and rows, and copies of it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import OutputFormat, Store, a_number
from rota.cli.output import Output, print_item, print_items, print_notice
from rota.protocol.defaults import STORE_WAIT_MS
from rota.protocol.ids import NO_SHARD
from rota.protocol.limits import GENERATIONS_RAISED, MAX_GENERATION

if TYPE_CHECKING:
    from rota.storage.restored import Lost, Restored
    from rota.storage.verify import ShardReport

WAIT_POLL_S = 0.5
SHOWN = 100

RaiseBy = Annotated[
    int,
    typer.Option(
        "--raise-generations-by",
        min=1,
        max=MAX_GENERATION,
        metavar="N",
        help=(
            "Distance by which generations jump above the highest known one. It must exceed the number of generations "
            "that any group has opened since the copy. The default is one generation per second for 11 days; "
            "the 32-bit numbers allow 2,000 such jumps."
        ),
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help=(
            "Continue although a server seems to run (Postgres). A running server may answer from its memory, with "
            "tokens of the former state, until its next lease renewal is rejected."
        ),
    ),
]

app = typer.Typer(no_args_is_help=True, help="Manage a store: its schema, its journal, and copies of it.")


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new file; or a folder, for a file with a date.")],
    store: Store = "",
) -> None:
    """Write a copy of the whole store into a new file. Servers may run.

    The copy is consistent, readable by its owner only, and synced to disk when the command ends. It never replaces a
    file. Its manifest, a file with `.json` after its name, has its SHA-256: keep the two together. On Postgres it needs
    `pg_dump` on PATH, of the server's major release or later, and a direct connection or a pooler in session mode.
    """
    from rota.storage.backup import backup as back_up
    from rota.storage.backup_files import read_manifest

    made = asyncio.run(back_up(store, target))
    for each in (read_manifest(made) or {}).get("foreign_objects", ()):
        print_notice(f"`rota db restore` will refuse this backup: {each}. See `rota db verify`")
    print(made)


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file that `rota db backup` has written.")],
    store: Store = "",
    raise_generations_by: RaiseBy = GENERATIONS_RAISED,
    force: Force = False,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Replace the store by a backup. All servers must be stopped.

    The backup is checked by its manifest, and its rows are copied into a schema that this release creates. A backup
    that was changed, or has other objects than Rota's (a trigger, a table, a function), is rejected, and none of its
    code runs. The former store is kept under another name: a file in the same folder, or a schema `rota_before_…`.
    Generations jump, as with `rota db restored`, so that no granted fencing token is granted again. If the former store
    can be read, the commits and generations that the backup lacks are listed.
    """
    from rota.storage.backup import restore as put_back
    from rota.storage.backup_files import manifest_of
    from rota.storage.urls import parse_store_url

    done = asyncio.run(put_back(store, source, raise_by=raise_generations_by, force=force))
    print_notice(f"{parse_store_url(store)} is restored from {source}")
    if not manifest_of(source).is_file():
        print_notice(f"{source} has no manifest, so changes of the file since the backup were not checked")
    if done.kept_as:
        print_notice(f"the former store is kept as {done.kept_as}")
    if done.unreadable:
        print_notice(f"the former store cannot be read, so it is not known which changes are lost: {done.unreadable}")
    _print(done.restored, output, kept_as=done.kept_as)


@app.command()
def restored(
    store: Store = "",
    raise_generations_by: RaiseBy = GENERATIONS_RAISED,
    former: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The former store, if it can still be read (the former primary, a copy of a damaged file): "
            "generations jump above its own, and the losses are listed.",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Make a store with an earlier state safe to serve. All servers must be stopped.

    Run it after any restore but `rota db restore`: point-in-time recovery, a volume snapshot, a lagging standby, a file
    that was copied back. Otherwise generations continue from that state, and two holders get the same fencing token.
    One transaction sets a new incarnation for the journal's readers, raises each shard's generations and epochs above
    all that may have been granted, and ends leases and registrations. A second run is harmless.
    """
    from rota.storage.restored import restored as make_safe

    done = asyncio.run(make_safe(store, raise_by=raise_generations_by, former_url=former, force=force))
    _print(done, output)


@app.command()
def copy(
    target: Annotated[str, typer.Option("--to", metavar="URL", help="An empty database: postgresql://…")],
    store: Store = "",
    output: OutputFormat = Output.TABLE,
) -> None:
    """Copy a store from SQLite to Postgres, where several replicas may serve it. The server must be stopped.

    Groups, members, offsets, topics, tokens and the whole journal are copied, all or nothing. The command fails if the
    target already holds a store, or lacks this release's schema (`rota db upgrade`). The source is unchanged: do not
    serve it again, because it would grant the same generations.
    """
    from rota.storage.transfer import copy_store
    from rota.storage.urls import parse_store_url

    done = asyncio.run(copy_store(store, target))
    print_notice(f"{parse_store_url(target)} is a copy of {parse_store_url(store)}; do not serve the source again")
    item = {"incarnation": done.incarnation, "shards": done.shards, **done.rows}
    print_item(item, output, name="incarnation")


@app.command()
def upgrade(store: Store = "") -> None:
    """Create the store's schema, or upgrade it to this release.

    One transaction; no change if it is up to date. On Postgres, servers of the former release may continue to run; on
    SQLite the server must be stopped (it upgrades by itself when it starts).
    """
    from rota.storage.migrate import upgrade as upgrade_store

    status = asyncio.run(upgrade_store(store))
    print_notice(f"the schema is at {status.current}" + (", of a later release" if status.is_newer else ""))


@app.command()
def check(store: Store = "", output: OutputFormat = Output.TABLE) -> None:
    """Print the version of the store's schema; ends with 1 if it must be upgraded first. Changes nothing."""
    from rota.storage.migrate import check as check_store

    status = asyncio.run(check_store(store))
    item = {"current": status.current, "head": status.head, "usable": status.usable, "newer": status.is_newer}
    print_item(item, output, name="current")
    if not status.usable:
        raise CommandFailed("the schema is not this release's; run `rota db upgrade`")


@app.command()
def wait(
    store: Store = "",
    timeout: Annotated[
        float, typer.Option(min=0, callback=a_number, metavar="SECONDS", help="Maximum time to wait.")
    ] = STORE_WAIT_MS / 1000,
) -> None:
    """Wait until another process has upgraded the store to this release, then end with 0; with 69 after the timeout.

    For use with a job that runs `rota db upgrade`: a program that starts after this command finds a usable schema. Also
    waits for a store that cannot be reached yet. Changes nothing.
    """
    current = asyncio.run(_until_usable(store, monotonic() + timeout))
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
def verify(store: Store = "", output: OutputFormat = Output.TABLE) -> None:
    """Compare the whole journal with the rows, and the schema with the release's; ends with 1 on any difference.

    Checks that no line is missing, that epochs never decrease, that no generation is opened twice, and that the groups,
    members, offsets and topics of the store match the journal exactly. Also checks that the schema has exactly this
    release's objects: a foreign trigger, table, rule or function, or a changed definition, is a difference. Only reads;
    a server may run. In a shard with pruned events only the remaining ones are checked.
    """
    from rota.storage.objects import check_objects
    from rota.storage.verify import verify as verify_store

    async def read() -> tuple[list[ShardReport], list[str]]:
        return [report async for report in verify_store(store)], await check_objects(store)

    reports, objects = asyncio.run(read())
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
    print_item(item, output, name="shards")
    if differences:
        raise CommandFailed("the journal and the rows do not agree")
    if objects:
        raise CommandFailed("the schema is not this release's: another program has changed it")


def _print(done: Restored, output: Output, **more: Any) -> None:
    floors = [shard.generation_floor for shard in done.shards]
    print_notice(f"incarnation {done.incarnation}; generations continue above {max(floors, default=0):,}")
    if done.lost is None:
        print_notice("changes after each shard's last event are lost; pass the former store with --former to list them")
    else:
        _print_lost(done.lost)
    if output is Output.JSON:
        lost = asdict(done.lost) if done.lost is not None else None
        shards = [asdict(shard) for shard in done.shards]
        item = {"incarnation": done.incarnation, "shards": shards, "lost": lost, **more}
        print_item(item, output, name="incarnation")
    else:
        columns = ("shard_id", "last_seq", "former_last_seq", "generation_floor", "epoch")
        print_items([asdict(shard) for shard in done.shards], output, columns=columns, name="shard_id")


def _print_lost(lost: Lost) -> None:
    commits = [
        f"lost commit: {each.namespace}/{each.group_id} {each.topic}/{each.partition}: {each.lost} was committed, now "
        + ("no offset is committed" if each.present is None else f"{each.present} is committed")
        for each in lost.commits
    ]
    groups = [
        f"lost generations: {each.namespace}/{each.group_id}: it was at {each.lost}, "
        + (f"the store knows {each.present}" if each.present else "the store does not know the group")
        for each in lost.groups
    ]
    revocations = [
        f"lost revocation: the API token {name} is accepted again; revoke it with `rota token revoke`"
        for name in lost.revocations
    ]
    for sentences in (commits, groups, revocations):
        for sentence in sentences[:SHOWN]:
            print_notice(sentence)
        if len(sentences) > SHOWN:
            print_notice(f"… and {len(sentences) - SHOWN:,} more such lines; `-o json` has all")
    if not (commits or groups or revocations):
        print_notice("no commit, generation or revocation is lost")
