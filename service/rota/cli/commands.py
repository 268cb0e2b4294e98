"""The commands of the `rota` program, and the options before a command's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from rota.cli.completion import complete_namespace
from rota.cli.contexts import context_in_use
from rota.cli.exits import EXIT_MEANINGS, CommandFailed, Commands, Exit
from rota.cli.options import DEFAULT_URL, Shared
from rota.cli.output import Output
from rota.credentials import Credentials

_PLACES = {
    "serve": "serve",
    "demo": "demo",
    "lead": "exec",
    "hold": "exec",
    "work": "exec",
    "sidecar": "sidecar",
    "top": "top",
    "doctor": "doctor",
    "version": "commands",
    "groups": "groups:app",
    "offsets": "offsets:app",
    "topics": "topics:app",
    "token": "tokens:app",
    "auth": "auth:app",
    "context": "contexts:app",
    "db": "db:app",
    "journal": "journal:app",
    "pipeline": "pipeline:app",
    "simulate": "demo:simulations",
}
"""The module of each command, and the object in it, if its name differs."""


class _Places(Mapping[str, Any]):
    """The commands by name. Each is imported and built when needed, because all of them take a while."""

    def __getitem__(self, name: str) -> Any:
        return _built(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


class _Program(Commands):
    """The whole command line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = _Places()


@cache
def _built(name: str) -> Any:
    place, _, attribute = _PLACES[name].partition(":")
    module = import_module(f"rota.cli.{place}")
    found = getattr(module, attribute or name)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, cls=getattr(module, "ServeCommand", None))(found)
    return typer.main.get_group(alone).commands[name]


app = typer.Typer(
    cls=_Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich removes text in brackets, such as defaults.
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: " + "; ".join(f"{int(code)} {meaning}" for code, meaning in EXIT_MEANINGS.items()) + ".",
)


def _print_release(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def rota(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_URL",
            help=f"Where the server is. Default: the context's, or {DEFAULT_URL}.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_NAMESPACE",
            help="Namespace of the groups. Default: the context's, or default.",
            show_default=False,
            autocompletion=complete_namespace,
        ),
    ] = None,
    output: Annotated[
        Output | None, typer.Option("--output", "-o", help="Format of the results.", show_default=False)
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(envvar="ROTA_TOKEN_FILE", help="File with the API token or JWT to authenticate with.")
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            envvar="ROTA_CA_FILE", help="Authorities that sign the server's certificate; default: the system's."
        ),
    ] = None,
    cert_file: Annotated[
        Path | None, typer.Option(envvar="ROTA_CERT_FILE", help="Client certificate chain in PEM to authenticate with.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(envvar="ROTA_KEY_FILE", help="Private key of the client certificate.")
    ] = None,
    use_context: Annotated[
        str | None,
        typer.Option("--context", envvar="ROTA_CONTEXT", metavar="NAME", help="A context of `rota context list`."),
    ] = None,
    release: Annotated[  # noqa: ARG001 - its callback acts
        bool, typer.Option("--version", callback=_print_release, is_eager=True, help="Print the release and exit.")
    ] = False,
) -> None:
    """Rota: processes join a group, agree on one generation, split the work, and take over from those that die.

    `rota demo` shows it, `rota serve` starts a server. Results go to standard output, messages to standard error. A
    token may also be in ROTA_TOKEN; there is no option for it, because other users of the machine can see options.
    """
    context.obj = connection(context, url, namespace, output, token_file, ca_file, cert_file, key_file, use_context)


def connection(
    context: typer.Context,
    url: str | None,
    namespace: str | None,
    output: Output | None,
    token_file: Path | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    use_context: str | None,
) -> Shared:
    """Resolve the server, namespace and credentials: options and the environment first, then the context.

    A context's credentials are for its URL: with another one, or with the caller's own token, they are not sent.
    """
    try:
        credentials = Credentials(None, token_file, ca_file, cert_file, key_file).or_environment()
    except ValueError as error:
        raise CommandFailed(str(error), Exit.USAGE) from error
    if context.invoked_subcommand == "context":
        return Shared(url or DEFAULT_URL, namespace or "default", output, credentials)
    chosen = context_in_use(use_context)
    if chosen is None:
        return Shared(url or DEFAULT_URL, namespace or "default", output, credentials)
    named = namespace or chosen.namespace
    if url not in (None, chosen.url) or credentials != Credentials():
        return Shared(url or chosen.url, named, output, credentials)
    return Shared(chosen.url, named, output, chosen.credentials(), of_context=True)


def version() -> None:
    """Print the release."""
    from rota import __version__

    print(__version__)


@cache
def command() -> Callable[[], Any]:
    """Return the command line with the options of the functions above; built once, because that takes a while."""
    built: Callable[[], Any] = typer.main.get_command(app)
    return built
