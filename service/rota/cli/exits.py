"""The ends of the command line: one exit code per kind of outcome, and one clear line instead of a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from typer.core import TyperGroup

from rota.cli.main import INTERRUPTED, missing_extra
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.wire.status import STATUS


class Exit(IntEnum):
    """Exit codes. 69 is EX_UNAVAILABLE of sysexits.h: the server may answer later."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    CONFLICT = 5
    DELETED = 6
    UNAVAILABLE = 69
    INTERRUPTED = INTERRUPTED


EXIT_MEANINGS = {
    Exit.OK: "success",
    Exit.ERROR: "failure",
    Exit.USAGE: "wrong options, or a request that can never succeed",
    Exit.NOT_FOUND: "no such group, member or topic, or no such lines in the journal",
    Exit.AUTH: "not authenticated, or not allowed",
    Exit.CONFLICT: "a conflict: the group has members, or the generation is over (fenced)",
    Exit.DELETED: "the group was deleted",
    Exit.UNAVAILABLE: "the server or the store cannot be reached, or asks to retry later",
    Exit.INTERRUPTED: "ended by Ctrl-C",
}

_BY_HTTP_STATUS = {
    400: Exit.USAGE,
    401: Exit.AUTH,
    403: Exit.AUTH,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    410: Exit.NOT_FOUND,
    412: Exit.CONFLICT,
    413: Exit.USAGE,
    421: Exit.UNAVAILABLE,
    428: Exit.CONFLICT,
    429: Exit.UNAVAILABLE,
    503: Exit.UNAVAILABLE,
}


class CommandFailed(Exception):
    """Ends the command: only the message is printed, and the process ends with `exit_code`."""

    def __init__(self, message: str, exit_code: Exit = Exit.ERROR) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def exit_for(code: ErrorCode) -> Exit:
    """Return the exit code for an error of the server."""
    if code is ErrorCode.GROUP_DELETED:
        return Exit.DELETED
    return _BY_HTTP_STATUS.get(STATUS[code].http, Exit.ERROR)


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
