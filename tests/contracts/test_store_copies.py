"""The file of an embedded store: copied alone, put back, damaged, or of another release."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from rota.core.replica.ports import StoreRefused
from rota.storage.backup import backup, restore
from rota.storage.backup_files import manifest_of
from rota.storage.migrate import upgrade
from rota.storage.restored import restored
from tests.contracts.builders import image_of
from tests.contracts.restorable import append, claimed, opened, path_of


async def test_a_copy_of_the_file_is_known_by_the_note(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = await opened(sqlite_url)
    await append(store, await claimed(store), 3, 7)
    await store.close()
    copy = path_of(sqlite_url).read_bytes()
    again = await opened(sqlite_url)
    await append(again, await claimed(again), 40, 9)
    await again.close()
    assert not again.went_back

    path_of(sqlite_url).write_bytes(copy)

    back = await opened(sqlite_url)
    assert (back.went_back, (await claimed(back)).generation_floor) == (True, 1_000_040)
    assert back.incarnation != store.incarnation
    assert "the store went back to an earlier state" in caplog.text
    await back.close()
    once_more = await opened(sqlite_url)
    assert not once_more.went_back
    await once_more.close()


async def test_a_copy_without_its_note_is_known(sqlite_url: str, tmp_path: Path) -> None:
    """As on another machine: the original may have gone on."""
    store = await opened(sqlite_url)
    await append(store, await claimed(store), 3, 7)
    file = await backup(sqlite_url, tmp_path / "copy.db")
    await store.close()

    copy = await opened(f"sqlite:///{file}")
    raised = (copy.went_back, (await claimed(copy)).generation_floor)
    await copy.close()
    again = await opened(f"sqlite:///{file}")
    await again.close()

    assert raised == (True, 1_000_003)
    assert copy.incarnation != store.incarnation
    assert not again.went_back


async def test_a_store_without_a_note_that_no_server_has_claimed_is_no_copy(sqlite_url: str) -> None:
    unclaimed = await opened(sqlite_url)
    await unclaimed.close()
    path_of(sqlite_url).with_name("rota.db.lock").unlink()

    store = await opened(sqlite_url)
    await store.close()

    assert not store.went_back


async def test_a_round_on_the_leases_is_enough_for_the_note(sqlite_url: str) -> None:
    """A server that is killed closes nothing."""
    store = await opened(sqlite_url)
    copy = sqlite3.connect(":memory:")
    with closing(copy), closing(sqlite3.connect(path_of(sqlite_url))) as live:
        live.backup(copy)
        claim = await claimed(store)
        await append(store, claim, 3, 7)
        await store.owners()
        lock = path_of(sqlite_url).with_name("rota.db.lock")
        noted = lock.read_bytes()
        await store.close()
        with closing(sqlite3.connect(path_of(sqlite_url))) as target:
            copy.backup(target)
    lock.write_bytes(noted)

    back = await opened(sqlite_url)

    assert back.went_back
    await back.close()


async def test_a_file_of_before_a_restore_is_known_by_its_note(sqlite_url: str, tmp_path: Path) -> None:
    store = await opened(sqlite_url)
    file = await backup(sqlite_url, tmp_path / "copy")
    await store.close()
    await restored(sqlite_url)

    path_of(sqlite_url).write_bytes(file.read_bytes())

    back = await opened(sqlite_url)
    assert (back.went_back, (await claimed(back)).generation_floor) == (True, 2_000_000)
    await back.close()


async def test_a_log_of_the_former_file_is_kept_beside_it(sqlite_url: str, tmp_path: Path) -> None:
    """SQLite would take it for a part of the file that was put there."""
    store = await opened(sqlite_url)
    file = await backup(sqlite_url, tmp_path / "copy")
    await append(store, await claimed(store), 41, 99)
    path = path_of(sqlite_url)
    left = {f"{path.name}{suffix}": Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal")}
    await store.close()
    for name, content in left.items():
        path.with_name(name).write_bytes(content)  # As a server that was killed leaves them.

    done = await restore(sqlite_url, file, raise_by=1)

    again = await opened(sqlite_url)
    assert ((await image_of(again, 0)).last_seq, (await claimed(again)).generation_floor) == (0, 42)
    with closing(sqlite3.connect(done.kept_as)) as former:
        assert former.execute("SELECT max(generation_id) FROM groups").fetchone() == (41,)
    await again.close()


async def test_a_damaged_store_is_replaced_and_kept(sqlite_url: str, tmp_path: Path) -> None:
    store = await opened(sqlite_url)
    file = await backup(sqlite_url, tmp_path / "copy")
    await append(store, await claimed(store), 41, 99)
    await store.close()
    path_of(sqlite_url).write_bytes(b"nothing that SQLite knows " * 400)

    done = await restore(sqlite_url, file)

    assert "not a database" in done.unreadable
    assert Path(done.kept_as).read_bytes().startswith(b"nothing that SQLite knows")
    # The note knew of generation 41.
    assert {shard.generation_floor for shard in done.restored.shards} == {1_000_041}


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda copy: copy[:-1], "is damaged: its end is missing"),
        (lambda copy: copy.replace(b"groups_by_name", b"\xf2roups_by_name", 1), "cannot be copied"),
    ],
)
async def test_a_copy_with_little_harm_is_refused(
    sqlite_url: str, tmp_path: Path, harm: Callable[[bytes], bytes], says: str
) -> None:
    await (await opened(sqlite_url)).close()
    file = await backup(sqlite_url, tmp_path / "copy")
    file.write_bytes(harm(file.read_bytes()))
    manifest_of(file).unlink()

    with pytest.raises(StoreRefused, match=says):
        await restore(sqlite_url, file)


async def test_a_restore_that_was_ended_in_between_is_repeated(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No start begins an empty store meanwhile, and the second attempt knows what the first one did."""
    store = await opened(sqlite_url)
    file = await backup(sqlite_url, tmp_path / "copy")
    await append(store, await claimed(store), 41, 99)
    await store.close()
    path_of(sqlite_url).with_name("rota.db.lock").unlink()
    with monkeypatch.context() as patched:
        rename = Path.rename
        patched.setattr(Path, "rename", lambda path, to: _ended() if path.suffix == ".restoring" else rename(path, to))
        with pytest.raises(KeyboardInterrupt):
            await restore(sqlite_url, file, raise_by=1)
    with pytest.raises(StoreRefused, match="its file is gone"):
        await upgrade(sqlite_url)

    done = await restore(sqlite_url, file, raise_by=1)

    assert {shard.generation_floor for shard in done.restored.shards} == {42}


def _ended() -> None:
    raise KeyboardInterrupt


async def test_a_file_that_is_no_store_is_not_backed_up(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE notes (text)")

    for name, says in (("other.db", "is no store of Rota"), ("typo.db", "there is no store")):
        with pytest.raises(StoreRefused, match=says):
            await backup(f"sqlite:///{tmp_path / name}", tmp_path / "copy")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.db"]
