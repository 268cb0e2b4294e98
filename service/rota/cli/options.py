"""Options that many commands share. `--url`, `--namespace` and `-o` may be before or after the command's name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import Parameter, Signature, signature
from math import isnan
from typing import Annotated, Any, get_type_hints

import typer

from rota.cli.completion import complete_group, complete_member, complete_namespace, complete_topic
from rota.cli.exits import CommandFailed, Exit
from rota.cli.output import Output
from rota.credentials import Credentials
from rota.protocol.ids import check_namespace

DEFAULT_URL = "http://127.0.0.1:8080"

Url = Annotated[str | None, typer.Option("--url", help="URL of the server.", show_default=False)]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", help="Namespace of the groups.", show_default=False, autocompletion=complete_namespace),
]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=complete_group)]
Member = Annotated[
    str,
    typer.Argument(metavar="MEMBER", help="The member's id, or its instance id.", autocompletion=complete_member),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic)]
Reason = Annotated[str, typer.Option("--reason", help="Reason, which is kept in the journal.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")]


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared options, as far as the command line has been read."""

    url: str = DEFAULT_URL
    namespace: str = "default"
    chosen: Output | None = None
    credentials: Credentials = field(default_factory=Credentials)
    of_context: bool = False
    """Whether the credentials are those of a context, and so only for its URL."""

    def with_given(self, url: str | None, namespace: str | None) -> Shared:
        """Return these options with those that were given after the command's name."""
        given = replace(self, url=url or self.url, namespace=namespace or self.namespace)
        if self.of_context and given.url != self.url:
            return replace(given, credentials=Credentials(), of_context=False)
        return given


def shared(context: typer.Context, url: str | None = None, namespace: str | None = None) -> Shared:
    """Return the shared options of a command."""
    return (context.find_object(Shared) or Shared()).with_given(url, namespace)


def _chosen_output(context: typer.Context, given: Output) -> Output:
    """Return the format of the option after the command's name, or else of the one before it."""
    source = context.get_parameter_source("output")
    is_given = source is not None and source.name == "COMMANDLINE"
    return given if is_given else shared(context).chosen or given


def _chosen_output_if_any(context: typer.Context, given: Output | None) -> Output | None:
    return given or shared(context).chosen


OutputFormat = Annotated[
    Output,
    typer.Option("--output", "-o", help="Format of the results.", show_default=False, callback=_chosen_output),
]
"""The format of the results of a command: a table by default."""
ChosenFormat = Annotated[
    Output | None,
    typer.Option("--output", "-o", help="Format of the results.", show_default=False, callback=_chosen_output_if_any),
]
"""The format of a command that has a default of its own."""


def _store_url(given: str | None) -> str:
    if given:
        return given
    from rota.storage.urls import default_store_url

    return default_store_url()


Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="ROTA_STORE",
        metavar="URL",
        help="sqlite:///PATH or postgresql://…; without it a SQLite file in the user's data folder.",
        show_default=False,
        callback=_store_url,
    ),
]


def at_server(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command with `--url` and `--namespace` of a function whose first parameter is the `Server`."""
    hints = get_type_hints(command, localns={"Server": object}, include_extras=True)

    def run(**given: Any) -> None:
        from rota.cli.calls import Server

        context, url, namespace = (given.pop(name) for name in ("context", "url", "namespace"))
        with Server(shared(context, url, namespace)) as server:
            command(server, **given)

    own = [each.replace(annotation=hints[each.name]) for each in list(signature(command).parameters.values())[1:]]
    found = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    common = {"url": Url, "namespace": Namespace}
    named = [Parameter(name, found.kind, default=None, annotation=option) for name, option in common.items()]
    run.__signature__ = Signature([found, *own, *named])  # type: ignore[attr-defined]
    run.__doc__ = command.__doc__
    return run


def confirm(question: str, *, yes: bool) -> None:
    """Return if `--yes` was given or the user answers yes; otherwise end the command without a change."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question} There is no terminal: pass --yes to confirm", Exit.USAGE)
    if not typer.confirm(question, err=True):
        raise CommandFailed("nothing was changed")


def a_number(value: float | None) -> float | None:
    """Reject NaN, which is within all bounds."""
    if value is not None and isnan(value):
        raise typer.BadParameter("'nan' is no number.")
    return value


@contextmanager
def usage() -> Iterator[None]:
    """Report a ValueError during the parsing of the user's input as a usage error."""
    try:
        yield
    except UnicodeEncodeError:
        raise  # `foreseen` describes it.
    except ValueError as error:
        raise CommandFailed(str(error), Exit.USAGE) from error


def check_connection(options: Shared) -> None:
    """Reject an invalid address, namespace or file of credentials: the SDK would retry with it."""
    from rota.protocol.wire.addresses import split_address

    check_namespace(options.namespace)
    with usage():
        split_address(options.url)
        options.credentials.headers()
        options.credentials.ssl_context()
