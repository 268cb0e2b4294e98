"""`rota auth`: what an access file says of somebody, before a server is told to go by it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import OutputFormat, shared
from rota.cli.output import Output, print_item, tell

if TYPE_CHECKING:
    from rota.access.document import AccessDocument

app = typer.Typer(no_args_is_help=True, help="Rules: who may do what, and which rule says so.")

AccessFile = Annotated[
    Path, typer.Option("--access-file", envvar="ROTA_ACCESS_FILE", help="The rules, as `rota serve` takes them.")
]


@app.command("can-i")
def can_i(
    context: typer.Context,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="describe, join, commit, administer, journal or metrics.")
    ],
    what: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="A group; `server` for the server itself.")],
    subject: Annotated[
        str, typer.Option("--as", help="Who: token:ci, user:alice, sa:team-a/worker, spiffe://…, cn:…, anonymous.")
    ],
    access_file: AccessFile,
    of_group: Annotated[
        list[str] | None, typer.Option("--of", help="A group of people it belongs to, as its issuer says; repeatable.")
    ] = None,
    topic: Annotated[bool, typer.Option("--topic", help="NAME is a topic's, not a group's.")] = False,
    output: OutputFormat = None,
) -> None:
    """Say whether the rules allow it, and which rule decides; ends with 4 where they do not."""
    from rota.access.actions import Action, Kind, Resource
    from rota.access.caller import Caller
    from rota.access.rules import decide

    if action not in Action.__members__.values():
        raise CommandFailed(f"{action!r} is no action; there are {', '.join(Action)}", Exit.USAGE)
    namespace, slash, name = what.partition("/")
    if what == "server":
        resource = Resource(Kind.SERVER)
    elif slash and namespace and name:
        resource = Resource(Kind.TOPIC if topic else Kind.GROUP, namespace, name)
    else:
        raise CommandFailed("say NAMESPACE/NAME, or server", Exit.USAGE)
    caller = Caller(subject, "assumed", tuple(of_group or ()))
    decision = decide(_read(access_file).rules, caller, Action(action), resource)
    item = {"allowed": decision.allowed, "rule": decision.rule, "detail": decision.detail}
    chosen = shared(context, output=output).output
    print_item(item, Output.TABLE if chosen is Output.NAME else chosen, name="rule")
    if not decision.allowed:
        raise typer.Exit(Exit.AUTH)


@app.command("check")
def check(access_file: AccessFile) -> None:
    """Read an access file as a server would, and say what is wrong with it; ends with 1 if anything is."""
    document = _read(access_file)
    tell(f"{len(document.rules)} rules, {len(document.quotas)} quotas, {len(document.issuers)} issuers")


def _read(path: Path) -> AccessDocument:
    from rota.access.document import InvalidAccess
    from rota.server.access.policy import read_access_file

    try:
        return read_access_file(path)
    except InvalidAccess as error:
        raise CommandFailed(f"{path}: {error}") from error
