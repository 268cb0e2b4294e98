"""The `rota` program: runs a command; only here does a failure become a line and an exit code.

It imports only the standard library, so that Ctrl-C is handled from the start, and a missing package is named.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130
"""128 plus the number of SIGINT, as in a shell."""
MODULES = {
    "cli": ("platformdirs", "rich", "starlette", "typer", "uvicorn"),
    "store": ("aiosqlite", "alembic", "sqlalchemy"),
    "server": (
        "cryptography",
        "fastapi",
        "httptools",
        "jinja2",
        "jwt",
        "prometheus_client",
        "pydantic",
        "pydantic_settings",
        "uvloop",
    ),
}
"""The modules that each extra installs, including those of extras that it requires."""


def main() -> None:
    """Run the command line; an expected failure ends it with one line and an exit code."""
    try:
        raise SystemExit(_run())
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _run() -> int:
    """Run the command and return its exit code."""
    try:
        from rota.cli.commands import command
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            raise
        print(f"rota: {missing}", file=sys.stderr)
        return 1
    from rota.cli.exits import CommandFailed
    from rota.server.observability.timeline import printable

    exit_code = 0
    try:
        command()()
    except SystemExit as ended:
        exit_code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except CommandFailed as failed:
        exit_code = failed.exit_code
        if str(failed):
            print(f"rota: {printable(str(failed))}", file=sys.stderr)
    return exit_code if _is_flushed() else exit_code or 1


def _is_flushed() -> bool:
    """Flush the output; False if that failed. A closed pipe is no failure."""
    if sys.stdout is None:  # The caller has closed it, as with `>&-`.
        return True
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        print(f"rota: standard output: {error.strerror}", file=sys.stderr)
        _discard_output()
        return False
    return True


def _discard_output() -> None:
    """Discard buffered output, so that it does not fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return the line to print if a command needs an extra that is not installed; None for any other missing module."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in MODULES.items():
        if module in modules:
            return f"this command needs the extra `{extra}` ({module} is missing): pip install 'rota[{extra}]'"
    return None
