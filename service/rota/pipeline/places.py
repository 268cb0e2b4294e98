"""Where a lake lies: a local or mounted folder, or a prefix in an object store (S3, Google Cloud, Azure).

Object stores have neither locks nor renames. There, a small object is written whole or not at all; tables are Delta
tables, and delta-rs commits by a conditional put: the next object of the log is created only if there is none. The
lock is a lease (`leases.py`). Credentials come from the environment, by the names that delta-rs knows, which are
obstore's, too: both are the same client, `object_store`.
"""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from rota.pipeline.atomic import write_atomically
from rota.pipeline.failures import LakeBusy, LakeRefused, LakeUnreachable

if TYPE_CHECKING:
    from obstore import WritableFile
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "abfss")


class Place(Protocol):
    """Small files below one folder or prefix, and its lock. Names are relative, with slashes."""

    url: str
    """The folder's path, or the prefix with its scheme."""

    @property
    def lease(self) -> int:
        """The number of the lease that this process took last: a later one fences it off. 0 for a folder."""

    def read(self, name: str) -> str | None:
        """The content; None where there is no such file."""

    def write(self, name: str, text: str) -> None:
        """Replace it; readers see the old content or the new."""

    def remove(self, name: str) -> None:
        """Remove it if it is there."""

    def written_s(self, name: str) -> float | None:
        """When it was written, in seconds since 1970; None where it is not there."""

    def is_empty(self) -> bool:
        """Whether there is nothing but the lock."""

    def locked(self) -> AbstractContextManager[bool]:
        """Be the only process that writes. Raises `LakeBusy` while another one does.

        Gives True where the process before did not release the lock in time and may still be writing.
        """


def place_at(location: str | Path) -> Place:
    """A folder, or `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`.

    Raises `LakeRefused` for another scheme.
    """
    scheme, colon, rest = str(location).partition("://")
    if not colon:
        return Folder(Path(location))
    if scheme not in SCHEMES or not rest.strip("/"):
        known = ", ".join(f"{each}://…" for each in SCHEMES)
        raise LakeRefused(f"the tables are in a folder or at {known}, not at {location}")
    return Prefix(f"{scheme}://{rest.rstrip('/')}")


class Folder:
    """A folder, local or mounted."""

    lease = 0

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = str(root)

    def read(self, name: str) -> str | None:
        path = self._root / name
        return path.read_text() if path.is_file() else None

    def write(self, name: str, text: str) -> None:
        write_atomically(self._root / name, text)

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def written_s(self, name: str) -> float | None:
        path = self._root / name
        return path.stat().st_mtime if path.is_file() else None

    def is_empty(self) -> bool:
        return not self._root.is_dir() or all(each.name == "lock" for each in self._root.iterdir())

    @contextmanager
    def locked(self) -> Iterator[bool]:
        self._root.mkdir(parents=True, exist_ok=True)
        with open(self._root / "lock", "w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LakeBusy(f"another process is writing to the tables in {self.url}") from error
            yield False


class Prefix:
    """A prefix in an object store."""

    def __init__(self, url: str) -> None:
        from rota.pipeline.leases import Lease

        self.url = url
        self._lease = Lease(f"{url}/lock")

    @property
    def lease(self) -> int:
        return self._lease.number

    def read(self, name: str) -> str | None:
        import obstore

        with reached(self.url):
            try:
                return str(obstore.get(*_object(f"{self.url}/{name}")).bytes(), "utf-8")
            except FileNotFoundError:
                return None

    def write(self, name: str, text: str) -> None:
        import obstore

        with reached(self.url):
            obstore.put(*_object(f"{self.url}/{name}"), text.encode())

    def remove(self, name: str) -> None:
        import obstore

        with reached(self.url), suppress(FileNotFoundError):
            obstore.delete(*_object(f"{self.url}/{name}"))

    def written_s(self, name: str) -> float | None:
        import obstore

        with reached(self.url):
            try:
                return obstore.head(*_object(f"{self.url}/{name}"))["last_modified"].timestamp()
            except FileNotFoundError:
                return None

    def is_empty(self) -> bool:
        import obstore

        client, path = _object(self.url)
        with reached(self.url):
            listed = (each["path"] for page in obstore.list(client, f"{path}/") for each in page)
            return all(each.startswith(f"{path}/lock/") for each in listed)

    def locked(self) -> AbstractContextManager[bool]:
        return self._lease.held()


# --- files of tables, wherever they are -----------------------------------------------------------------


def located(uri: str) -> tuple[Any, str]:
    """The file system of a file or folder, and its path there."""
    scheme, colon, rest = uri.partition("://")
    if not colon:
        return pafs.LocalFileSystem(), uri
    host, _, path = rest.partition("/")
    return _object_store(f"{scheme}://{host}"), path


@cache
def _object_store(root: str) -> Any:
    from deltalake.fs import DeltaStorageHandler

    return pafs.PyFileSystem(DeltaStorageHandler(root))


@cache
def _client(root: str) -> ObjectStore:
    from obstore.store import from_url

    return from_url(root)


def sink(uri: str) -> Any:
    """A new file, for a Parquet writer. An object is there once this is closed."""
    if not is_remote(uri):
        return pa.OSFile(uri, "wb")
    import obstore

    return pa.PythonFile(_Writer(obstore.open_writer(*_object(uri))), mode="w")


class _Writer(io.RawIOBase):
    """obstore's writer as a file of Python's: there, `closed` is an attribute."""

    def __init__(self, to: WritableFile) -> None:
        self._to = to

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._to.write(data)

    def close(self) -> None:
        if not self.closed:
            self._to.close()
        super().close()


def _object(uri: str) -> tuple[ObjectStore, str]:
    """The client of an object's bucket, and its path there."""
    scheme, _, rest = uri.partition("://")
    host, _, path = rest.partition("/")
    return _client(f"{scheme}://{host}"), path


def is_remote(uri: str) -> bool:
    return "://" in uri


def read_file(uri: str, **options: Any) -> Any:
    """The rows of one file, as an Arrow table."""
    system, path = located(uri)
    with reached(uri):
        return pq.read_table(path, filesystem=system, **options)


def rows_of(uris: list[str], schema: Any) -> Any:
    """The rows of these files, which are of one table, as a dataset."""
    system = located(uris[0])[0]
    return ds.dataset([located(uri)[1] for uri in uris], schema=schema, format="parquet", filesystem=system)


def finished_size(uri: str) -> int:
    """The size of a file that was written, once it is durable: a commit that names it must not outlive it."""
    system, path = located(uri)
    if is_remote(uri):
        return int(system.get_file_info(path).size)
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())
    return os.stat(path).st_size


@contextmanager
def reached(url: str) -> Iterator[None]:
    """What an object store does not do becomes a `LakeUnreachable`. A folder's errors are its machine's, and pass."""
    try:
        yield
    except Exception as error:
        if not (is_remote(url) and _is_of_object_stores(error)):
            raise
        said = " ".join(str(error).split())
        raise LakeUnreachable(f"the object store of {url} does not answer, or refuses this machine: {said}") from error


def _is_of_object_stores(error: Exception) -> bool:
    from obstore.exceptions import BaseError

    return isinstance(error, OSError | BaseError)
