"""`rota db backup`, `restore`, `restored` and `copy`: copies of a store, and a store that was restored from one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.options import OutputFormat, Store, shared, store_url
from rota.cli.output import Output, print_item, print_items, print_notice
from rota.protocol.limits import GENERATIONS_RAISED, MAX_GENERATION

if TYPE_CHECKING:
    from rota.storage.restored import Lost, Restored

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


def backup(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new file; or a folder, for a file with a date.")],
    store: Store = None,
) -> None:
    """Write a copy of the whole store into a new file. Servers may run.

    The copy is consistent, readable by its owner only, and synced to disk when the command ends. It never replaces a
    file. Its manifest, a file with `.json` after its name, has its SHA-256: keep the two together. On Postgres it needs
    `pg_dump` on PATH, of the server's major release or later, and a direct connection or a pooler in session mode.
    """
    from rota.storage.backup import backup as back_up
    from rota.storage.backup_files import read_manifest

    made = asyncio.run(back_up(store_url(store), target))
    for each in (read_manifest(made) or {}).get("foreign_objects", ()):
        print_notice(f"`rota db restore` will refuse this backup: {each}. See `rota db verify`")
    print(made)


def copy(
    context: typer.Context,
    target: Annotated[str, typer.Option("--to", metavar="URL", help="An empty database: postgresql://…")],
    store: Store = None,
    output: OutputFormat = None,
) -> None:
    """Copy a store from SQLite to Postgres, where several replicas may serve it. The server must be stopped.

    Groups, members, offsets, topics, tokens and the whole journal are copied, all or nothing. The command fails if the
    target already holds a store, or lacks this release's schema (`rota db upgrade`). The source is unchanged: do not
    serve it again, because it would grant the same generations.
    """
    from rota.storage.transfer import copy_store
    from rota.storage.urls import parse_store_url

    source = store_url(store)
    done = asyncio.run(copy_store(source, target))
    print_notice(f"{parse_store_url(target)} is a copy of {parse_store_url(source)}; do not serve the source again")
    print_item(
        {"incarnation": done.incarnation, "shards": done.shards, **done.rows},
        _item_output(context, output),
        name="incarnation",
    )


def _item_output(context: typer.Context, output: OutputFormat) -> Output:
    chosen = shared(context, output=output).output
    return Output.TABLE if chosen is Output.NAME else chosen


def restore(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file that `rota db backup` has written.")],
    store: Store = None,
    raise_generations_by: RaiseBy = GENERATIONS_RAISED,
    force: Force = False,
    output: OutputFormat = None,
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

    url = store_url(store)
    done = asyncio.run(put_back(url, source, raise_by=raise_generations_by, force=force))
    print_notice(f"{parse_store_url(url)} is restored from {source}")
    if not manifest_of(source).is_file():
        print_notice(f"{source} has no manifest, so changes of the file since the backup were not checked")
    if done.kept_as:
        print_notice(f"the former store is kept as {done.kept_as}")
    if done.unreadable:
        print_notice(f"the former store cannot be read, so it is not known which changes are lost: {done.unreadable}")
    _print(done.restored, shared(context, output=output).output, kept_as=done.kept_as)


def restored(
    context: typer.Context,
    store: Store = None,
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
    output: OutputFormat = None,
) -> None:
    """Make a store with an earlier state safe to serve. All servers must be stopped.

    Run it after any restore but `rota db restore`: point-in-time recovery, a volume snapshot, a lagging standby, a file
    that was copied back. Otherwise generations continue from that state, and two holders get the same fencing token.
    One transaction sets a new incarnation for the journal's readers, raises each shard's generations and epochs above
    all that may have been granted, and ends leases and registrations. A second run is harmless.
    """
    from rota.storage.restored import restored as make_safe

    done = asyncio.run(make_safe(store_url(store), raise_by=raise_generations_by, former_url=former, force=force))
    _print(done, shared(context, output=output).output)


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
    for sentences in (list(_lost_commits(lost)), list(_lost_groups(lost)), list(_lost_revocations(lost))):
        _print_some(sentences)
    if not (lost.commits or lost.groups or lost.revocations):
        print_notice("no commit, generation or revocation is lost")


def _lost_commits(lost: Lost) -> Iterator[str]:
    for commit in lost.commits:
        name = f"{commit.namespace}/{commit.group_id} {commit.topic}/{commit.partition}"
        now = "no offset is committed" if commit.present is None else f"{commit.present} is committed"
        yield f"lost commit: {name}: {commit.lost} was committed, now {now}"


def _lost_groups(lost: Lost) -> Iterator[str]:
    for group in lost.groups:
        now = f"the store knows {group.present}" if group.present else "the store does not know the group"
        yield f"lost generations: {group.namespace}/{group.group_id}: it was at {group.lost}, {now}"


def _lost_revocations(lost: Lost) -> Iterator[str]:
    for name in lost.revocations:
        yield f"lost revocation: the API token {name} is accepted again; revoke it with `rota token revoke`"


def _print_some(sentences: Sequence[str]) -> None:
    for sentence in sentences[:SHOWN]:
        print_notice(sentence)
    if len(sentences) > SHOWN:
        print_notice(f"… and {len(sentences) - SHOWN:,} more such lines; `-o json` has all")
