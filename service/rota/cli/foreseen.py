"""Expected failures of commands, from any layer: each becomes a `CommandFailed`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup

from rota.cli.exits import CommandFailed, Exit, exit_for
from rota.cli.extras import missing_extra
from rota.protocol.errors import RejectedRequest


class Commands(TyperGroup):
    """All commands of the program. Their expected failures are handled here, before Typer sees them."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with foreseen():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with foreseen():
            return super().invoke(ctx)


@contextmanager
def foreseen() -> Iterator[None]:
    """Run a part of a command; a failure of the server, the store, a file or a name becomes a `CommandFailed`."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandFailed("", Exit.INTERRUPTED) from None
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # Rich ends the program if the reader has closed the pipe.
            raise CommandFailed("", Exit.OK) from None
        raise
    except Exception as error:
        failed = failure_of(error)
        if failed is None or failed is error:
            raise
        raise failed from error


def failure_of(error: BaseException) -> CommandFailed | None:
    """Return the exit for `error`; None for an unexpected error, which is a bug of Rota."""
    match error:
        case CommandFailed():
            return error
        case BaseExceptionGroup():
            return next((found for each in error.exceptions if (found := failure_of(each)) is not None), None)
        case RejectedRequest():
            return CommandFailed(error.detail, exit_for(error.code))
        case ModuleNotFoundError() if missing := missing_extra(error):
            return CommandFailed(missing)
        case UnicodeEncodeError():
            piece = error.object[error.start : error.end]
            return CommandFailed(f"{piece!r} is no text that can be sent or printed as {error.encoding}", Exit.USAGE)
        case BrokenPipeError():
            return CommandFailed("", Exit.OK)  # The reader of the output has closed the pipe.
        case OSError(filename=str() as name, strerror=str() as reason):
            return CommandFailed(f"{name}: {reason}")
        case OSError(strerror=str() as reason, filename=None):
            return CommandFailed(reason)
    return _failure_below(error)


def _failure_below(error: BaseException) -> CommandFailed | None:
    """Return the failure of a layer that a simple command does not load; an unloaded layer has raised no error."""
    sdk, ports = (sys.modules.get(name) for name in ("rota.client.errors", "rota.core.replica.ports"))
    if sdk and isinstance(error, sdk.CoordinatorError):
        return CommandFailed(f"{error} ({error.code})", exit_for(error.code))
    if ports and isinstance(error, ports.StoreUnavailable):
        return CommandFailed(str(error), Exit.UNAVAILABLE)
    return CommandFailed(str(error)) if ports and isinstance(error, ports.StoreRefused) else None
