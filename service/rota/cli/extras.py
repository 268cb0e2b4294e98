"""The extras that commands need: `pip install rota` alone installs the SDK.

It imports only the standard library, so that it can report any other missing package.
"""

from __future__ import annotations

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


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return the line to print if a command needs an extra that is not installed; None for any other missing module."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in MODULES.items():
        if module in modules:
            return f"this command needs the extra `{extra}` ({module} is missing): pip install 'rota[{extra}]'"
    return None
