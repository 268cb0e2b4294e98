"""URLs of stores: `sqlite:///relative.db`, `sqlite:////absolute/path.db` or `postgresql://…`.

A URL may name a file with the password: `postgresql://rota@HOST/rota?password_file=/run/secrets/rota`. Its content may
change.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import platformdirs

from rota.core.replica.ports import StoreRefused

_PARAMETER = "password_file="
_POSTGRES_SCHEMES = ("postgresql", "postgres")


@dataclass(frozen=True, slots=True)
class SqliteLocation:
    """A file of this machine."""

    path: Path

    def __str__(self) -> str:
        return f"sqlite:///{self.path}"


@dataclass(frozen=True, slots=True)
class PostgresLocation:
    """A DSN as libpq and asyncpg read it, several hosts and `?sslmode=` included."""

    dsn: str
    password_file: Path | None = None
    """Read with each new connection."""

    @property
    def writable_dsn(self) -> str:
        """Of several hosts it means one that accepts writes, unless it says otherwise itself."""
        if "," not in self._login_and_hosts[1] or "target_session_attrs=" in self.dsn:
            return self.dsn
        return f"{self.dsn}{'&' if '?' in self.dsn else '?'}target_session_attrs=read-write"

    @property
    def dsns(self) -> list[str]:
        """One for each host."""
        login, hosts = self._login_and_hosts
        after = self.writable_dsn.removeprefix(f"postgresql://{login}{hosts}")
        return [f"postgresql://{login}{host}{after}" for host in hosts.split(",")]

    @property
    def _login_and_hosts(self) -> tuple[str, str]:
        login, at, hosts = urlsplit(self.dsn).netloc.rpartition("@")
        return f"{login}{at}", hosts

    def __str__(self) -> str:
        """Without user and password, for messages."""
        parts = urlsplit(self.dsn)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


StoreLocation = SqliteLocation | PostgresLocation


def parse_store_url(url: str) -> StoreLocation:
    """Read a store's URL; `StoreRefused` if it is none."""
    scheme, _, rest = url.partition("://")
    if scheme in _POSTGRES_SCHEMES and rest:
        return PostgresLocation(*split_password_file(_checked(f"postgresql://{rest}")))
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        name = unquote(rest[1:])
        try:
            path = Path(name).expanduser().absolute()
        except RuntimeError as error:
            raise StoreRefused(f"{name} is in the home of a user that this machine does not know") from error
        if "\0" in name:
            raise StoreRefused("the name of a file cannot hold a zero byte (%00)")
        if path.is_dir():
            raise StoreRefused(f"{path} is a folder; a SQLite store is a file")
        return SqliteLocation(path)
    # The URL may hold a password, so the message names its scheme only.
    raise StoreRefused(
        f"a store's URL is sqlite:///relative.db, sqlite:////absolute/path.db or postgresql://…, not {scheme}://…"
    )


def _checked(dsn: str) -> str:
    """The same; `StoreRefused`, without what may be a password, where host or port cannot be read."""
    try:
        hosts = urlsplit(dsn).netloc.rpartition("@")[2].split(",")
        ports = [int(port) for host in hosts if (port := host.rpartition("]")[2].partition(":")[2])]
    except ValueError:
        ports = [0]
    if not all(0 < port < 65_536 for port in ports):
        raise StoreRefused("a host and port of the store's URL cannot be read: postgresql://HOST:PORT/DATABASE")
    return dsn


def default_store_url() -> str:
    """The embedded store of this user: a SQLite file in the platform's folder for user data."""
    return f"sqlite:///{platformdirs.user_data_path('rota') / 'rota.db'}"


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
