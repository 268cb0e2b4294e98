"""`rota context`: named servers, each with a namespace and the files of credentials, stored in a file of the user."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs
import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import OutputFormat
from rota.cli.output import Output, print_items, print_notice
from rota.credentials import Credentials

FILE_VARIABLE = "ROTA_CONTEXTS_FILE"

app = typer.Typer(no_args_is_help=True, help="Contexts: servers by name, with a namespace and credentials.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.")]


@dataclass(frozen=True, slots=True)
class Context:
    """One server. Secrets stay in separate files: a context has their paths."""

    url: str
    namespace: str = "default"
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def credentials(self) -> Credentials:
        names = (self.token_file, self.ca_file, self.cert_file, self.key_file)
        token, ca, cert, key = (None if name is None else Path(name) for name in names)
        return Credentials(None, token, ca, cert, key)


@dataclass(frozen=True, slots=True)
class Contexts:
    """The file with all contexts and the current one."""

    current: str | None = None
    contexts: dict[str, Context] = field(default_factory=dict)

    def named(self, name: str) -> Context:
        """Return the context of this name; end the command if it does not exist."""
        if name not in self.contexts:
            known = ", ".join(self.contexts) or "none"
            raise CommandFailed(f"there is no context {name} (known: {known}); `rota context add` adds one", Exit.USAGE)
        return self.contexts[name]


def contexts_file() -> Path:
    """Return the path in `ROTA_CONTEXTS_FILE`, or of a file in the user's configuration folder."""
    named = os.environ.get(FILE_VARIABLE)
    return Path(named) if named else platformdirs.user_config_path("rota") / "contexts.json"


def read_contexts() -> Contexts:
    """Read this user's contexts; empty without a file."""
    path = contexts_file()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{path} is no file of contexts ({error}); remove it, or correct it") from error


def context_in_use(name: str | None) -> Context | None:
    """Return the named context, or the current one, if any."""
    contexts = read_contexts()
    chosen = name or contexts.current
    return None if chosen is None else contexts.named(chosen)


@app.command("add")
def add(
    name: Name,
    url: Annotated[str, typer.Option("--url", help="The server's address.")],
    namespace: Annotated[str, typer.Option("--namespace", help="The namespace of its groups.")] = "default",
    token_file: Annotated[Path | None, typer.Option(help="A file with an API token, or a JWT.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Authorities of servers' certificates.")] = None,
    cert_file: Annotated[Path | None, typer.Option(help="A certificate chain in PEM.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
) -> None:
    """Add a context, or replace the one of that name. The first context becomes the current one."""
    from rota.cli.options import usage
    from rota.protocol.ids import check_namespace
    from rota.protocol.wire.addresses import split_address

    check_namespace(namespace)
    files = [None if path is None else str(path.absolute()) for path in (token_file, ca_file, cert_file, key_file)]
    context = Context(url, namespace, *files)
    with usage():
        split_address(url)
        context.credentials()
    before = read_contexts()
    _write(Contexts(before.current or name, {**before.contexts, name: context}))
    print_notice(f"context {name} is {url}, namespace {namespace}")


@app.command("use")
def use(name: Name) -> None:
    """Use this context in every command that names no other context or server."""
    before = read_contexts()
    context = before.named(name)
    _write(Contexts(name, before.contexts))
    print_notice(f"context {name} is in use: {context.url}, namespace {context.namespace}")


@app.command("list")
def list_contexts(output: OutputFormat = Output.TABLE) -> None:
    """List the contexts and mark the current one."""
    found = read_contexts()
    items = [
        {"name": name, "in_use": name == found.current, **asdict(each)} for name, each in sorted(found.contexts.items())
    ]
    columns = ("name", "in_use", "url", "namespace", "token_file")
    print_items(items, output, columns=columns, name="name")


@app.command("remove")
def remove(name: Name) -> None:
    """Remove a context. Its files remain."""
    before = read_contexts()
    before.named(name)
    left = {other: context for other, context in before.contexts.items() if other != name}
    _write(Contexts(None if before.current == name else before.current, left))
    print_notice(f"context {name} is removed")


def _write(contexts: Contexts) -> None:
    from rota.server.private_files import write_private

    path = contexts_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, msgspec.json.format(msgspec.json.encode(contexts)).decode() + "\n")
