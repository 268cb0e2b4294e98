"""`rota token`: API tokens of a store or of a file. A token is printed once and is not stored."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import OutputFormat, Store, Yes, confirm
from rota.cli.output import Output, print_items, print_notice
from rota.cli.times import ago, span_ms, until
from rota.core.access.tokens import LIFE_MS, TokenRecord, ends_soon, state_of

if TYPE_CHECKING:
    from rota.protocol.messages import Act
    from rota.server.access.tokens import FileVault
    from rota.storage.access import TokenTable

_LONGEST_LIFE_MS = 36_500 * 86_400 * 1_000
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,100}")

app = typer.Typer(no_args_is_help=True, help="API tokens: secrets that authenticate callers, each shown once.")

File = Annotated[
    Path | None,
    typer.Option("--file", envvar="ROTA_ACCESS_TOKENS_FILE", help="Keep tokens in this file instead of the store."),
]
Token = Annotated[str, typer.Argument(metavar="TOKEN", help="A token's id, or its name, which means all so named.")]
Why = Annotated[str, typer.Option("--note", help="Reason, which is kept in the store's journal.")]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of its user; rules name it token:NAME.")],
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="An action or a role (viewer, member, operator, admin) of its scope; repeatable."),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", help="Namespaces: NAME, or PREFIX*; repeatable. [default]"),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Groups: NAME, or PREFIX*; repeatable. [all]")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Topics: NAME, or PREFIX*; repeatable. [all]")
    ] = None,
    expires_in: Annotated[str | None, typer.Option(metavar="TIME", help="Lifetime: 30d, 12h, 15m, 90s. [90d]")] = None,
    never_expires: Annotated[bool, typer.Option("--never-expires", help="Valid until it is revoked.")] = False,
    note: Annotated[str, typer.Option(help="Note on its purpose, for people.")] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write it to this file, readable by its owner only, and print nothing."),
    ] = None,
    store: Store = "",
    file: File = None,
) -> None:
    """Create a token and print it once. Only its digest is kept. It expires after 90 days by default.

    With --out the token is written to a file that no other user can read, whatever the umask; an existing file is
    replaced.

    Its scope is --allow in these namespaces; without --allow the rules for token:NAME apply. To rotate, create another
    one of the same name, deploy it, and revoke the first by its id.
    """
    import secrets

    from rota.core.access.tokens import RANDOM_BYTES, mint, parse

    if not _NAME.fullmatch(name):
        raise CommandFailed("a token's name is 1 to 100 of A-Z a-z 0-9 . _ - :", Exit.USAGE)
    text = mint(secrets.token_bytes(RANDOM_BYTES))
    presented, now_ms = parse(text), _now_ms()
    record = TokenRecord(
        presented.token_id,
        name,
        presented.digest,
        _scope(name, allow, namespace, group, topic),
        created_at_ms=now_ms,
        expires_at_ms=_end_of(expires_in, now_ms, never_expires=never_expires),
        note=note,
    )
    with _shown(text, out):
        _run(_vault(store, file).add(record, _act(note)))
        ends = "never expires" if record.expires_at_ms is None else f"expires {until(record.expires_at_ms)}"
        where = "this is the only time that it is shown" if out is None else f"it is in {out}"
        print_notice(f"created token {record.token_id} for {name}; it {ends}; {where}")


@app.command("list")
def list_tokens(store: Store = "", file: File = None, output: OutputFormat = Output.TABLE) -> None:
    """List tokens by id and name, with their permissions and validity. Shows no secrets, because they are not stored.

    Tokens that expire within 14 days are named on stderr. For tokens in a store, the time of the last use is accurate
    to five minutes.
    """
    records = _run(_vault(store, file).read())
    items = [_item(record) for record in records]
    columns = ("token_id", "name", "state", "created", "last_used", "expires", "scope", "note")
    print_items(items, output, columns=columns, name="token_id")
    for record in records:
        if ends_soon(record, _now_ms()):
            named = f"token {record.token_id} ({record.name})"
            print_notice(f"{named} expires {_expires(record.expires_at_ms)}: create another one of that name")


@app.command("revoke")
def revoke(token: Token, store: Store = "", file: File = None, note: Why = "", yes: Yes = False) -> None:
    """Reject a token from now on. Servers apply it within seconds, also to open streams."""
    vault = _vault(store, file)
    found = _found(vault, token)
    named = ", ".join(f"{record.token_id} ({record.name})" for record in found)
    confirm(f"Revoke {named}? Callers with it are rejected from then on.", yes=yes)
    for record in found:
        _run(vault.revoke(record.token_id, _now_ms(), _act(note)))
        print_notice(f"token {record.token_id} ({record.name}) is revoked")


@app.command("forget")
def forget(token: Token, store: Store = "", file: File = None, note: Why = "") -> None:
    """Remove tokens that are revoked or have expired from the list. Others must be revoked first."""
    vault = _vault(store, file)
    for record in _found(vault, token):
        if state_of(record, _now_ms()) == "good":
            raise CommandFailed(f"token {record.token_id} ({record.name}) is valid; revoke it first", Exit.CONFLICT)
        _run(vault.forget(record.token_id, _act(note)))
        print_notice(f"token {record.token_id} ({record.name}) is forgotten")


@app.command()
def history(
    token: Annotated[
        str | None, typer.Argument(metavar="[TOKEN]", help="Only tokens of this id or name; they may be removed.")
    ] = None,
    store: Store = "",
    limit: Annotated[int, typer.Option(min=1, help="Number of latest lines to read.")] = 1_000,
    output: OutputFormat = Output.TABLE,
) -> None:
    """List from the journal the creation, revocation and removal of tokens: time, author, origin and note; latest
    first.

    An author in the console is identified by the credentials, `token:alice`. An author with this command had the
    store's own credentials: `shell:alice` is only the user name on that machine.
    """
    from rota.storage.access import TokenTable

    items = [
        {
            "at_ms": each.at_ms,
            "when": ago(each.at_ms),
            "done": each.done.lower(),
            "name": each.name,
            "token_id": each.token_id,
            "by": each.act.actor,
            "origin": each.act.origin,
            "note": each.act.note,
        }
        for each in _run(TokenTable(store).acts(limit))
        if token in (None, each.token_id, each.name)
    ]
    columns = ("when", "done", "name", "token_id", "by", "origin", "note")
    print_items(items, output, columns=columns, name="token_id")


def _end_of(expires_in: str | None, now_ms: int, *, never_expires: bool) -> int | None:
    if never_expires:
        if expires_in is not None:
            raise CommandFailed("either --expires-in or --never-expires", Exit.USAGE)
        return None
    life_ms = LIFE_MS if expires_in is None else span_ms(expires_in)
    if life_ms is None:
        raise CommandFailed("--expires-in must be like 30d, 12h, 15m or 90s", Exit.USAGE)
    if life_ms > _LONGEST_LIFE_MS:
        raise CommandFailed("--expires-in is at most 36500d, which is 100 years", Exit.USAGE)
    return now_ms + life_ms


def _expires(expires_at_ms: int | None) -> str:
    return "never" if expires_at_ms is None else until(expires_at_ms)


@contextmanager
def _shown(text: str, out: Path | None) -> Iterator[None]:
    """Show the token after the block has succeeded: print it, or move it into the file.

    The file is written first, and moved into place afterwards. So no token is lost on a full disk, and if no token is
    created, an existing file remains.
    """
    if out is None:
        yield
        print(text)
        return
    from rota.server.private_files import write_beside

    try:
        if out.is_dir():
            raise IsADirectoryError(EISDIR, "it is a folder")
        written = write_beside(out, f"{text}\n")
    except OSError as error:
        raise CommandFailed(f"{out} cannot be written: {error.strerror}") from error
    try:
        yield
        written.replace(out)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def _act(note: str) -> Act:
    """Return the user of this command by the machine's user name."""
    import getpass
    import os
    import socket

    from rota.protocol.messages import Act

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers give processes users that have no name
        user = str(os.getuid())
    return Act(f"shell:{user}", note, socket.gethostname())


def _vault(store: str, file: Path | None) -> FileVault | TokenTable:
    from rota.server.access.tokens import FileVault
    from rota.storage.access import TokenTable

    return FileVault(file) if file is not None else TokenTable(store)


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return asyncio.run(work)
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def _found(vault: FileVault | TokenTable, token: str) -> list[TokenRecord]:
    found = [record for record in _run(vault.read()) if token in (record.token_id, record.name)]
    if not found:
        raise CommandFailed(f"there is no token {token}", Exit.NOT_FOUND)
    return found


def _scope(
    name: str, allow: list[str] | None, namespace: list[str] | None, group: list[str] | None, topic: list[str] | None
) -> tuple[Any, ...]:
    from rota.core.access.document import InvalidAccess, read_rule

    if not allow:
        return ()
    table: dict[str, Any] = {"name": f"the scope of token {name}", "subjects": [f"token:{name}"], "actions": allow}
    table["namespaces"] = namespace or ["default"]
    table |= {key: value for key, value in (("groups", group), ("topics", topic)) if value}
    try:
        return (read_rule(table),)
    except InvalidAccess as error:
        raise CommandFailed(str(error), Exit.USAGE) from error


def _item(record: TokenRecord) -> dict[str, Any]:
    scope = [f"{','.join(sorted(rule.actions))} in {','.join(rule.namespaces)}" for rule in record.grants]
    state = state_of(record, _now_ms())
    return {
        "token_id": record.token_id,
        "name": record.name,
        "state": state,
        "created_at_ms": record.created_at_ms,
        "created": ago(record.created_at_ms),
        "expires_at_ms": record.expires_at_ms,
        "expires": _expires(record.expires_at_ms) if state == "good" else None,
        "last_used_at_ms": record.last_used_at_ms,
        "last_used": record.last_used_at_ms and ago(record.last_used_at_ms),
        "scope": scope,
        "note": record.note,
    }


def _now_ms() -> int:
    return int(time.time() * 1_000)
