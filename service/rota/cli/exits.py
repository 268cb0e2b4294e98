"""The ends of the command line: one exit code per kind of outcome, and one clear line instead of a traceback."""

from __future__ import annotations

from enum import IntEnum

from rota.cli.main import INTERRUPTED
from rota.protocol.errors import ErrorCode
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
