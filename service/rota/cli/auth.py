"""`rota auth`: permissions of a subject under an access file, or of the caller at a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import OutputFormat, Shared, Url, shared
from rota.cli.output import Output, print_item, print_notice
from rota.cli.times import until

if TYPE_CHECKING:
    from rota.core.access.document import AccessDocument
    from rota.protocol.calls import Action

app = typer.Typer(no_args_is_help=True, help="Permissions, and the rules that decide them.")

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
        str | None,
        typer.Option(
            "--as", help="Subject to check: token:ci, user:alice, sa:team-a/worker, corp:user:al, cn:…, anonymous."
        ),
    ] = None,
    access_file: Annotated[
        Path | None, typer.Option("--access-file", envvar="ROTA_ACCESS_FILE", help="Ask this file, with --as.")
    ] = None,
    of_group: Annotated[
        list[str] | None,
        typer.Option("--of", help="A group of people of the subject, as its issuer says; repeatable."),
    ] = None,
    topic: Annotated[bool, typer.Option("--topic", help="NAME is a topic, not a group.")] = False,
    url: Url = None,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Print whether the rules allow an action, and which rule decides; ends with 4 if they do not.

    The server answers for your own token or certificate; with --as an access file answers for any subject.
    """
    from rota.protocol.calls import Action

    if action not in Action.__members__.values():
        raise CommandFailed(f"{action!r} is no action; there are {', '.join(Action)}", Exit.USAGE)
    place = _place(what, is_topic=topic)
    options = shared(context, url=url)
    if subject is None:
        if of_group or _is_typed(context, "access_file"):
            raise CommandFailed("--access-file requires --as SUBJECT", Exit.USAGE)
        item = _ask(options, {"action": action, **place})
    elif access_file is None or url is not None:
        raise CommandFailed("--as requires --access-file: a server answers only for the caller itself", Exit.USAGE)
    else:
        item = _look_up(access_file, subject, of_group or [], Action(action), place)
    print_item(item, Output.TABLE if output is Output.NAME else output, name="rule")
    if not item["allowed"]:
        raise typer.Exit(Exit.AUTH)


@app.command("whoami")
def whoami(context: typer.Context, url: Url = None, output: OutputFormat = Output.TABLE) -> None:
    """Print your identity at the server, and the rules that apply to you; ends with 4 if your token is invalid."""
    from rota.cli.calls import Server

    options = shared(context, url=url)
    with Server(options) as server:
        caller = server.exchange("GET", "/v1/whoami")
    if output is Output.TABLE:
        expires_at_ms = caller.pop("expires_at_ms")
        caller["groups"] = ", ".join(caller["groups"])
        caller["rules"] = ", ".join(rule["name"] for rule in caller["rules"])
        caller["expires"] = expires_at_ms and until(expires_at_ms)
    print_item(caller, output, name="subject")


@app.command("check")
def check(access_file: AccessFile) -> None:
    """Read an access file as a server would, and print its errors; ends with 1 if there are any."""
    document = _read(access_file)
    print_notice(f"{len(document.rules)} rules, {len(document.quotas)} quotas, {len(document.issuers)} issuers")


def _place(what: str, *, is_topic: bool) -> dict[str, str]:
    """Return the place of the action for a server's question; empty for the server itself."""
    namespace, slash, name = what.partition("/")
    if what == "server":
        return {}
    if not (slash and namespace and name):
        raise CommandFailed("say NAMESPACE/NAME, or server", Exit.USAGE)
    return {"namespace": namespace, "topic" if is_topic else "group_id": name}


def _is_typed(context: typer.Context, parameter: str) -> bool:
    """Return whether a parameter is on the command line, and not only in the environment."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _ask(options: Shared, question: dict[str, str]) -> dict[str, Any]:
    from rota.cli.calls import Server

    with Server(options) as server:
        return server.exchange("GET", "/v1/can-i", tuple(question.items()))


def _look_up(path: Path, subject: str, groups: list[str], action: Action, place: dict[str, str]) -> dict[str, Any]:
    from rota.core.access.rules import Caller, Resource, decide, issuer_in
    from rota.protocol.calls import Kind

    kind = Kind.TOPIC if "topic" in place else Kind.GROUP if place else Kind.SERVER
    resource = Resource(kind, place.get("namespace", ""), place.get("topic") or place.get("group_id", ""))
    caller = Caller(subject, "assumed", tuple(groups), issuer=issuer_in(subject))
    decision = decide(_read(path).rules, caller, action, resource)
    return {"allowed": decision.allowed, "rule": decision.rule, "detail": decision.detail}


def _read(path: Path) -> AccessDocument:
    from rota.core.access.document import InvalidAccess
    from rota.server.access.files import read_access_file

    try:
        return read_access_file(path)
    except InvalidAccess as error:
        raise CommandFailed(f"{path}: {error}") from error
