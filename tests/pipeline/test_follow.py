"""Following a journal for long, in time that is set by hand: outages, other commands, and the cost of a look."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rota.cli.exits import CommandFailed
from rota.cli.pipeline_steps import metrics_served
from rota.pipeline.failures import JournalRefused
from rota.pipeline.follow import Follower, Look
from rota.pipeline.gold import refresh
from rota.pipeline.lake import Lake
from rota.pipeline.meters import METRICS, Meters, served
from rota.pipeline.slices import Slice
from rota.pipeline.tables import STEPS
from tests.pipeline.journals import DECODER, simulated
from tests.pipeline.test_lake import Fed, bronze_lines
from tests.pipeline.test_spark import closed_rows

JOURNAL = simulated(1)
LAST = max(line.seq for line in JOURNAL)


class Hand:
    """A clock that only sleeping moves; `at` names what happens at which second."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.slept: list[float] = []
        self.at: dict[float, Callable[[], object]] = {}

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        for moment in sorted(each for each in self.at if each <= self.now_s):
            self.at.pop(moment)()


class Stopped(Exception):
    """The test has seen enough."""


def follow(fed: Fed, clock: Hand, until_s: float, follower: Follower | None = None) -> list[Look]:
    """All looks up to then."""

    def stop() -> None:
        raise Stopped

    clock.at[until_s] = stop
    looks: Iterator[Look] = (follower or Follower(fed.ingest, decoder=DECODER, clock=clock)).looks(None, fed.lake)
    found: list[Look] = []
    with pytest.raises(Stopped):
        found.extend(looks)
    return found


def test_an_outage_is_reported_once_and_the_looks_go_on_after_it(tmp_path: Path) -> None:
    fed, clock, store = Fed(tmp_path), Hand(), tmp_path / "rota.db"
    fed.append(20)
    clock.at = {1_010.0: lambda: store.rename(tmp_path / "away.db")}
    clock.at[1_400.0] = lambda: (tmp_path / "away.db").rename(store)
    clock.at[1_500.0] = lambda: fed.append(LAST)

    looks = follow(fed, clock, 1_700.0)

    messages = [look.message for look in looks if look.message]
    assert len(messages) == 2
    assert "there is no store at" in messages[0]
    assert messages[1].startswith("works again after 4")
    assert max(clock.slept) == 60.0
    assert sum(look.lines for look in looks) == len(JOURNAL)
    assert fed.rows() == closed_rows(JOURNAL)


def test_other_commands_get_the_lock_between_two_steps(tmp_path: Path) -> None:
    fed, clock = Fed(tmp_path), Hand()
    fed.append(20)
    taken = Lake.open(fed.lake.root).locked()

    def refresh_meanwhile() -> None:
        with Lake.open(fed.lake.root).locked():
            refresh(None, Lake.open(fed.lake.root), decoder=DECODER)

    clock.at = {1_002.0: refresh_meanwhile, 1_010.0: taken.__enter__, 1_050.0: lambda: taken.__exit__(None, None, None)}
    clock.at[1_100.0] = lambda: fed.append(LAST)

    looks = follow(fed, clock, 1_300.0)

    messages = [look.message for look in looks if look.message]
    assert "another process is writing" in messages[0]
    assert "works again" in messages[1]
    assert fed.rows() == closed_rows(JOURNAL)


def test_a_store_that_refuses_us_ends_it(tmp_path: Path) -> None:
    fed, clock = Fed(tmp_path), Hand()
    clock.at[1_010.0] = lambda: (tmp_path / "rota.db").write_bytes(b"no store at all, but some text" * 100)

    with pytest.raises(JournalRefused):
        follow(fed, clock, 2_000.0)


@pytest.mark.thorough
def test_files_stay_few_however_long_it_follows(tmp_path: Path) -> None:
    """Each look brings a line, as in a quiet fleet; without compaction each would leave a file."""
    fed, clock = Fed(tmp_path), Hand()
    for number in range(1, LAST + 1):
        clock.at[1_000.0 + 5 * number] = lambda number=number: fed.append(number)  # type: ignore[misc]
    often = Follower(fed.ingest, refresh_every_s=60, compact_every_s=100, vacuum_hours=0, decoder=DECODER, clock=clock)

    follow(fed, clock, 1_200.0 + 5 * LAST, often)

    assert len(bronze_lines(fed.lake)) == len(JOURNAL)
    assert fed.rows() == closed_rows(JOURNAL)
    assert len(list(Path(fed.lake.bronze.path).glob("*.parquet"))) < 20
    assert len(list((Path(fed.lake.root) / "plans" / "ingest").iterdir())) < 15


def test_a_refresh_looks_into_no_file_but_those_with_new_lines(tmp_path: Path) -> None:
    fed = Fed(tmp_path)
    for to_seq in (10, 20, 30, 40):
        fed.grow(to_seq)

    new = Slice.of(fed.lake, 3, 4)

    assert len(fed.lake.bronze.files()) > 3
    assert [set(each.least.values()) & {4} for each in new.files] == [{4}] * len(new.files)
    assert sum(each.rows for each in new.files) == Counter(row[3] for row in bronze_lines(fed.lake))[4]


def figures(text: str) -> dict[str, float]:
    """What Prometheus reads, by name and labels."""
    return {name: float(value) for name, value in re.findall(r"^(rota\S+) (\S+)$", text, re.MULTILINE)}


def test_its_figures_count_lines_steps_failures_and_files(tmp_path: Path) -> None:
    fed, clock, store = Fed(tmp_path), Hand(), tmp_path / "rota.db"
    fed.append(20)
    first = sum(line.seq <= 20 for line in JOURNAL)
    clock.at = {1_100.0: lambda: store.rename(tmp_path / "away.db")}
    clock.at[1_300.0] = lambda: (tmp_path / "away.db").rename(store)
    clock.at[1_400.0] = lambda: fed.append(LAST)
    follower = Follower(fed.ingest, decoder=DECODER, clock=clock, compact_every_s=300)

    follow(fed, clock, 1_700.0, follower)

    with served(follower.meters, "127.0.0.1", 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            found = figures(answer.read().decode())
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
    assert {name.partition("{")[0] for name in found} == {metric.name for metric in METRICS}
    assert found["rota_pipeline_lines_total"] == len(JOURNAL)
    assert found["rota_pipeline_failures_total"] > 2
    assert found['rota_pipeline_steps_total{step="ingest"}'] > 40
    assert found['rota_pipeline_steps_total{step="compact"}'] == 2
    assert 1_690 < found['rota_pipeline_last_success_timestamp_seconds{step="ingest"}'] <= 1_700
    assert found['rota_pipeline_files{table="bronze/events"}'] == len(fed.lake.bronze.files())

    rows = [row for path in fed.lake.fact_files(STEPS.name) for row in pq.read_table(path).to_pylist()]
    assert sorted(row["lines"] for row in rows if row["step"] == "ingest") == sorted((first, len(JOURNAL) - first))


def test_figures_that_have_no_new_lines_add_no_rows(tmp_path: Path) -> None:
    fed, meters = Fed(tmp_path), Meters()
    fed.append(20)

    follow(fed, clock := Hand(), 3_000.0, Follower(fed.ingest, decoder=DECODER, clock=clock, meters=meters))

    assert fed.lake.gold(STEPS.name).batch == 1


def test_figures_are_served_at_a_free_address() -> None:
    with pytest.raises(CommandFailed, match="HOST:PORT"), metrics_served(Meters(), "9464"):
        pass
    with served(Meters(), "127.0.0.1", 0) as port:
        taken = metrics_served(Meters(), f"127.0.0.1:{port}")
        with pytest.raises(CommandFailed, match="in use"), taken:
            pass
    with metrics_served(Meters(), ""), metrics_served(Meters(), f"127.0.0.1:{port}"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).close()
