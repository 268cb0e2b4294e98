"""Tables in an object store: the same rows as in a folder, with a lease for the lock."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow.fs import FileSelector

from rota.pipeline import bronze, places
from rota.pipeline.advisor import advise
from rota.pipeline.audit import audit
from rota.pipeline.failures import LakeBusy, LakeRefused, LakeUnreachable
from rota.pipeline.gold import refresh
from rota.pipeline.lake import Lake
from rota.pipeline.leases import Lease
from rota.pipeline.places import Folder, Place, Prefix, located, place_at
from rota.pipeline.report import make_report
from rota.pipeline.tables import FOLDED
from rota.pipeline.upkeep import compact_lake
from tests.pipeline.journals import DECODER, INCARNATION, sqlite_store
from tests.pipeline.test_lake import JOURNAL, Fed
from tests.pipeline.test_spark import closed_rows, stored_rows
from tests.support.object_store import BUCKET, running
from tests.support.processes import Processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket that the environment has the credentials of."""
    with running(tmp_path_factory.mktemp("s3")) as environment, pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        # Kept from a former server, where a worker of the tests comes back to this module.
        places._client.cache_clear()
        places._object_store.cache_clear()
        yield f"s3://{BUCKET}"


@pytest.fixture
def prefix(store: str) -> str:
    return f"{store}/{uuid.uuid4().hex}"


class FedRemotely(Fed):
    """A store in a file, tables in an object store."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.lake = Lake.create(url, "delta", INCARNATION)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["folder", "prefix"])
def test_a_place_keeps_small_files_whatever_it_is(kind: str, tmp_path: Path, prefix: str) -> None:
    place: Place = place_at(tmp_path / "lake" if kind == "folder" else prefix)
    empty_at_first = place.is_empty()
    with place.locked() as overtakes:
        still_empty = place.is_empty()
        place.write("plans/ingest/1.json", "one")
        place.write("plans/ingest/1.json", "zwei €")

    found = place.read("plans/ingest/1.json"), place.written_s("plans/ingest/1.json")
    nothing = place.read("plans/ingest/2.json"), place.written_s("plans/ingest/2.json")
    filled = not place.is_empty()
    place.remove("plans/ingest/1.json")
    place.remove("plans/ingest/1.json")

    assert isinstance(place, Folder if kind == "folder" else Prefix)
    assert (empty_at_first, still_empty, overtakes, filled) == (True, True, False, True)
    assert found[0] == "zwei €"
    assert found[1] is not None
    assert nothing == (None, None)
    assert place.read("plans/ingest/1.json") is None


@pytest.mark.thorough
@pytest.mark.parametrize("location", ["http://tables/lake", "s3://", "hdfs://tables/lake"])
def test_other_schemes_are_refused(location: str) -> None:
    with pytest.raises(LakeRefused, match="s3://…, gs://…, abfss://…"):
        place_at(location)


@pytest.mark.thorough
def test_plain_files_are_refused_there(prefix: str) -> None:
    with pytest.raises(LakeRefused, match="Delta tables"):
        Lake.create(prefix, "parquet", INCARNATION)


@pytest.mark.thorough
def test_a_bucket_that_is_not_there_is_named(store: str) -> None:
    with pytest.raises(LakeUnreachable, match="s3://another/lake"):
        Lake.create("s3://another/lake", "delta", INCARNATION)


@pytest.mark.thorough
def test_refreshes_and_compaction_end_with_the_rows_of_one_pass(tmp_path: Path, prefix: str) -> None:
    fed = FedRemotely(tmp_path, prefix)
    middle = datetime.fromtimestamp(sorted(line.at_ms for line in JOURNAL)[len(JOURNAL) // 2] / 1000, UTC)

    for to_seq in (40, 1_000):
        fed.append(to_seq)
        with fed.lake.locked():
            fed.ingest.run(None, fed.lake)
            fed.refresh()
            done = list(compact_lake(fed.lake, keep_days=0.000001, vacuum_hours=0, now=middle))

    read = Lake.open(prefix)
    assert {table: stored_rows(read, table) for table in FOLDED} == closed_rows(JOURNAL)
    assert read.moment().fold == 2
    assert "lines from before" in done[0]
    assert files_in(f"{prefix}/bronze/events") == len(read.bronze.files())


@pytest.mark.thorough
def test_two_processes_do_not_write_at_a_time(prefix: str) -> None:
    lake, other = (Lake.create(prefix, "delta", INCARNATION) for _ in range(2))

    with lake.locked():
        with pytest.raises(LakeBusy, match="is writing to the tables"), other.locked():
            pass
    with other.locked():
        pass

    assert other.place.lease == lake.place.lease + 1


@pytest.mark.thorough
def test_a_lease_ends_by_itself_and_is_renewed_while_held(prefix: str) -> None:
    now_s = [1_000.0]
    mine, other = (Lease(f"{prefix}/lock", lasts_s=60, clock=lambda: now_s[0]) for _ in range(2))

    with mine.held() as overtakes:
        now_s[0] += 50
        mine._extend(60)
        now_s[0] += 50
        with pytest.raises(LakeBusy):
            other._take()
        now_s[0] += 11
        overtaken = other._take()

    assert (overtakes, overtaken) == (False, True)
    assert (mine.number, other.number) == (1, 2)
    # The former holder did not end the lease of the other.
    with pytest.raises(LakeBusy):
        Lease(f"{prefix}/lock", clock=lambda: now_s[0])._take()


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["bronze: before the commit", "bronze: after the commit"])
def test_a_writer_that_was_overtaken_commits_nothing(
    place: str, tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It pauses for longer than its lease lasts, with a plan or a batch that is half done; then it goes on."""
    fed = FedRemotely(tmp_path, prefix)
    fed.append(30)
    with fed.lake.locked():
        fed.ingest.run(None, fed.lake)
        fed.refresh()
    fed.append(1_000)
    other = Lake.open(prefix)

    def pause(reached: str) -> None:
        if reached != place:
            return
        monkeypatch.setattr(bronze, "breakpoint_at", lambda _place: None)
        monkeypatch.setattr(other.place._lease, "_clock", lambda: 4e9)  # type: ignore[attr-defined]
        with other.locked():
            fed.ingest.run(None, other)
            refresh(None, other, decoder=DECODER)

    monkeypatch.setattr(bronze, "breakpoint_at", pause)
    with fed.lake.locked(), pytest.raises(LakeBusy, match="taken over"):
        work(fed)

    assert {table: stored_rows(Lake.open(prefix), table) for table in FOLDED} == closed_rows(JOURNAL)


def work(fed: Fed) -> None:
    """What is new, and then the first commit, if there was nothing."""
    fed.ingest.run(None, fed.lake)
    fed.refresh()
    fed.lake.bronze.fence()


def files_in(url: str) -> int:
    """Files beside the log, in use or not."""
    system, path = located(url)
    return sum(each.base_name.endswith(".parquet") for each in system.get_file_info(FileSelector(path)))


@pytest.mark.thorough
def test_commands_take_the_url_of_a_prefix(tmp_path: Path, prefix: str, processes: Processes) -> None:
    url = sqlite_store(tmp_path / "rota.db", JOURNAL)
    at = ("--lake", prefix)
    environment = {"ROTA_STORE": url, "PYTHONPATH": str(Path(__file__).parents[2])}

    ended = [
        processes.rota("pipeline", *command, *at, env=environment).wait_for_exit()
        for command in (
            ("ingest", "--once"),
            ("refresh", "--decoder", DECODER),
            ("compact",),
            ("backfill", "--decoder", DECODER),
        )
    ]

    lake = Lake.open(prefix)
    assert ended == [0, 0, 0, 0]
    assert lake.gold("carry").batch == 2
    assert {table: stored_rows(lake, table) for table in FOLDED} == closed_rows(JOURNAL)


@pytest.mark.slow
def test_spark_ingests_folds_audits_and_reports_there(spark: SparkSession, tmp_path: Path, prefix: str) -> None:
    fed = FedRemotely(tmp_path, prefix)
    fed.append(1_000)
    with fed.lake.locked():
        fed.ingest.run(spark, fed.lake)
        refresh(spark, fed.lake, decoder=DECODER)
        advised = advise(spark, fed.lake, decoder=DECODER)

    audited = audit(spark, Lake.open(prefix))
    page = make_report(spark, Lake.open(prefix), days=3650)

    assert audited.lines == len(JOURNAL)
    assert audited.findings == ()
    assert audited.tables == len(FOLDED)
    assert advised > 10
    assert page.write(tmp_path / "report")[0].read_text().count("<section") > 3
