"""Options that many commands share. `--url`, `--namespace` and `-o` may be before or after the command's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Annotated

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
OutputFormat = Annotated[
    Output | None, typer.Option("--output", "-o", help="Format of the results.", show_default=False)
]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=complete_group)]
Member = Annotated[
    str,
    typer.Argument(metavar="MEMBER", help="The member's id, or its instance id.", autocompletion=complete_member),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic)]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="ROTA_STORE",
        metavar="URL",
        help="sqlite:///PATH or postgresql://…; without it a SQLite file in the user's data folder.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared options, as far as the command line has been read."""

    url: str = DEFAULT_URL
    namespace: str = "default"
    chosen: Output | None = None
    credentials: Credentials = field(default_factory=Credentials)
    of_context: bool = False
    """Whether the credentials are those of a context, and so only for its URL."""

    @property
    def output(self) -> Output:
        """The format of `-o`; a table by default."""
        return self.chosen or Output.TABLE

    def with_given(self, url: str | None, namespace: str | None, output: Output | None) -> Shared:
        """Return these options with those that were given after the command's name."""
        given = replace(self, url=url or self.url, namespace=namespace or self.namespace, chosen=output or self.chosen)
        if self.of_context and given.url != self.url:
            return replace(given, credentials=Credentials(), of_context=False)
        return given


def shared(
    context: typer.Context, url: str | None = None, namespace: str | None = None, output: Output | None = None
) -> Shared:
    """Return the shared options of a command."""
    before = context.find_object(Shared) or Shared()
    return before.with_given(url, namespace, output)


def store_url(given: str | None) -> str:
    """Return the URL of a command's store."""
    if given:
        return given
    from rota.storage.urls import default_store_url

    return default_store_url()


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
