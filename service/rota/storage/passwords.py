"""Passwords in files that URLs name: `postgresql://rota@HOST/rota?password_file=/run/secrets/rota`. They may change."""

from __future__ import annotations

import errno
from pathlib import Path
from urllib.parse import quote, unquote

_PARAMETER = "password_file="


def split_password_file(url: str) -> tuple[str, Path | None]:
    """The URL as drivers read it, and the file that it names."""
    base, _, query = url.partition("?")
    pairs = query.split("&") if query else []
    kept = [pair for pair in pairs if not pair.startswith(_PARAMETER)]
    files = [Path(unquote(pair.removeprefix(_PARAMETER))) for pair in pairs if pair.startswith(_PARAMETER)]
    return "?".join((base, "&".join(kept))) if kept else base, files[-1] if files else None


def with_password(dsn: str, file: Path) -> str:
    """The DSN with the password as it is now, for drivers that take nothing else. Raises OSError."""
    return f"{dsn}{'&' if '?' in dsn else '?'}password={quote(read_password(file), safe='')}"


def read_password(file: Path) -> str:
    """The password as it is now: asked for with each new connection. Raises OSError."""
    try:
        return file.read_text("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, "the password is no text in UTF-8", str(file)) from error
