"""`rota serve`: a server in the foreground."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from rota.cli.exits import CommandFailed, Exit

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

WITHOUT_OPTION = ("limits", "budgets")
"""Settings with their own settings, which only variables can set."""


class ServeCommand(TyperCommand):
    """Takes the options that the server's settings name; they are loaded only for this command.

    Other commands do not need the server's modules, whose import takes longer than most commands.
    """

    @property
    def params(self) -> list[Any]:
        found: list[Any] = self._with_options.params
        return found

    @params.setter
    def params(self, found: list[Any]) -> None:
        """Add the options of the settings: Typer found none in the signature of `serve`."""

    def invoke(self, ctx: Any) -> Any:
        return self._with_options.invoke(ctx)

    @cached_property
    def _with_options(self) -> Any:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(_with_options_of_settings())
        return typer.main.get_command(app)


def serve() -> None:
    """Run a server in the foreground, until Ctrl-C or SIGTERM.

    Without --store it keeps everything in a SQLite file in your data folder. Every option can also be set by the
    environment variable that is named with it; the bounds of the protocol only by ROTA_LIMITS__….
    """


def _with_options_of_settings() -> Any:
    from rota.server.settings import Settings

    def run(**given: Any) -> None:
        _run({name: value for name, value in given.items() if value is not None})

    options = [_option(name, field) for name, field in Settings.model_fields.items() if name not in WITHOUT_OPTION]
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    return run


def _run(given: dict[str, Any]) -> None:
    from pydantic import ValidationError

    from rota.server.lifecycle import run
    from rota.server.settings import Settings
    from rota.server.workers import run_workers

    # All files of this process, including SQLite's, are readable by their owner only.
    os.umask(0o077)
    if "log_format" not in given and sys.stderr.isatty():
        given["log_format"] = "text"
    try:
        settings = Settings(**given)
    except ValidationError as error:
        raise CommandFailed(_what_is_wrong(error), Exit.USAGE) from error
    raise typer.Exit(run(settings) if settings.workers == 1 else run_workers(settings))


def _option(name: str, field: FieldInfo) -> Parameter:
    """Return an option without its own default: a missing value comes from the environment or from Settings."""
    from rota.server.settings import Metavar

    parts = list(_parts_of(field.annotation, *field.metadata))
    flag = _flag(name)
    kind: Any = next((kind for kind in (bool, int) if kind in parts), str)
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if field.default is True else flag,
        envvar=f"ROTA_{name.upper()}",
        metavar=next((part.text for part in parts if isinstance(part, Metavar)), None),
        help=(field.description or "").replace("`", "") + _default_of(field),
        show_default=False,
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def _parts_of(*annotations: Any) -> Iterator[Any]:
    """Yield all types and marks of an annotation."""
    for annotation in annotations:
        yield annotation
        yield from _parts_of(*get_args(annotation))


def _default_of(field: FieldInfo) -> str:
    has_none = field.default_factory is not None or field.default is None or isinstance(field.default, bool | tuple)
    return "" if has_none else f" Default: {field.default}."


def _what_is_wrong(error: ValidationError) -> str:
    """Describe every wrong setting by its option and variable, without the values: a store's URL may contain a
    password.
    """
    return "; ".join(
        ": ".join(filter(None, (_named(each["loc"]), _in_options(each["msg"].removeprefix("Value error, ")))))
        for each in error.errors()
    )


def _named(place: tuple[int | str, ...]) -> str:
    """Return the option of a setting, or its variable if it has no option."""
    if not place:
        return ""
    variable = "ROTA_" + "__".join(map(str, place)).upper()
    return variable if place[0] in WITHOUT_OPTION else f"{_flag(str(place[0]))} ({variable})"


def _in_options(text: str) -> str:
    """Return a message of the settings, with options in place of settings."""
    from rota.server.settings import Settings

    return re.sub(
        r"\b[a-z]+(_[a-z]+)+\b", lambda found: _flag(found[0]) if found[0] in Settings.model_fields else found[0], text
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
