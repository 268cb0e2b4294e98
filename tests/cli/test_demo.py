"""`rota demo`: it shows what it claims, its checks can fail, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
from base64 import b64encode
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota.client import GroupEvent
from rota.core.assignors import TopicPartition
from rota.core.types.consumer import Assignment, encode_assignment
from rota.demo.board import Board
from rota.demo.work import Work
from tests.support.processes import Process, Processes

UUID = "52dfdb5b-daf7-44a0-b782-57f31fc0e97b"


@pytest.fixture
def some_files(tmp_path: Path) -> Path:
    """A folder with 40 files of 5 words, in two levels, and what does not count: hidden files."""
    folder = tmp_path / "input"
    for number in range(40):
        file = folder / f"level-{number % 2}" / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("one two, three: four\nfünf\n")
    (folder / ".hidden").write_text("not this")
    return folder


def start_demo(processes: Processes, folder: Path, *options: str) -> Process:
    """A demo on its own server, with its temporary folder beside `folder`."""
    settings = ("--url", "http://127.0.0.1:1", "--session-timeout-ms", "1000")
    temporary = folder.parent / "temporary"
    temporary.mkdir()
    return processes.rota("demo", "--input", folder, *settings, *options, env={"TMPDIR": str(temporary)})


def alive_in_session(session_id: int) -> list[psutil.Process]:
    """The processes that a demo has started, and that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.processes
@pytest.mark.slow
def test_the_demo_loses_a_worker_and_finishes_exactly_once(processes: Processes, some_files: Path) -> None:
    demo = start_demo(processes, some_files, "--rounds", "6")

    exit_code = demo.wait_for_exit(90)

    reported = demo.output()
    assert exit_code == 0, reported
    assert "FAILED" not in reported
    assert "kill -9" in reported
    assert "no heartbeat within its session timeout of 1000 ms" in reported
    assert "every file was counted exactly once: 240 of 240" in reported
    # \w+ in bytes: the ü of fünf parts it in two words.
    assert "the words agree: 1440 counted by the workers, 1440 counted directly" in reported
    assert "a commit in its name is rejected by the coordinator: UNKNOWN_MEMBER_ID" in reported
    assert "a result in its name is rejected by the fence" in reported
    assert "\x1b" not in reported
    assert not alive_in_session(demo.pid)
    assert not list((some_files.parent / "temporary").iterdir())


@pytest.mark.slow
@pytest.mark.processes
def test_a_demo_that_is_killed_takes_its_processes_along(processes: Processes, some_files: Path) -> None:
    demo = start_demo(processes, some_files, "--rounds", "100000", "--no-kill", "--workers", "2")
    demo.wait_for_line("generation 1:")
    started = psutil.Process(demo.pid).children(recursive=True)
    assert len(started) == 3

    demo.send(signal.SIGKILL)

    assert demo.wait_for_exit() == -signal.SIGKILL
    gone, left = psutil.wait_procs(started, timeout=30)
    assert (len(gone), left) == (3, [])


@pytest.mark.slow
@pytest.mark.processes
def test_too_little_work_to_lose_a_member_is_a_failure(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "one.txt").write_text("one")

    demo = start_demo(processes, tmp_path / "input", "--workers", "2", "--rounds", "1")

    assert demo.wait_for_exit(60) == 1
    assert "FAILED  a worker was killed" in demo.output()


# --- the parts ---------------------------------------------------------------------------------------


class Journal:
    """Feeds a board with events as a coordinator writes them."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.revision = 0

    def notify(self, kind: str, generation_id: int = 1, reason: str = "", **payload: Any) -> list[str]:
        self.revision += 1
        event = GroupEvent(self.revision, 0, generation_id, kind, reason, payload)
        return [line.text for line in self.board.lines_of(event)]

    def generation(self, generation_id: int, shares: dict[str, list[int]]) -> list[str]:
        """A completed generation in which the first member leads."""
        ids = {name: f"{name}-{UUID}" for name in shares}
        self.notify("generation_completed", generation_id, member_ids=list(ids.values()))
        encoded = [
            [ids[name], b64encode(encode_assignment(Assignment(tuple(TopicPartition("words", n) for n in share))))]
            for name, share in shares.items()
        ]
        leader_id = next(iter(ids.values()))
        return self.notify("assignment_synced", generation_id, leader_id=leader_id, assignments=encoded)

    def commit(self, name: str, partition: int, offset: int) -> list[str]:
        return self.notify("offsets_committed", member_id=f"{name}-{UUID}", offsets=[["words", partition, offset]])


def test_the_board_shows_takeovers_and_late_commits() -> None:
    board = Board(Work("", (("a", "b", "c"), ("d", "e", "f"), ("g",)), rounds=1))
    journal = Journal(board)
    reported = journal.generation(1, {"worker-1": [0, 1], "worker-2": [2]})
    assert reported == ["generation 1: worker-1 has 0-1, worker-2 has 2 (as worker-1, its leader, assigned)"]

    journal.commit("worker-1", 0, 1)
    assert board.someone_in_the_middle() is None
    journal.commit("worker-1", 0, 2)
    assert board.someone_in_the_middle() == f"worker-1-{UUID}"
    loss = board.lose(f"worker-1-{UUID}")
    journal.notify("member_expired", member_id=loss.member_id, reason="silent")
    journal.generation(2, {"worker-2": [0, 1, 2]})
    taken = journal.commit("worker-2", 0, 3)
    journal.commit("worker-1", 1, 3)

    assert loss.unfinished == {0: 2, 1: 0}
    assert taken[0].startswith("partition 0: worker-2 continues for worker-1 at file 2 of 3")
    assert loss.taken_over.keys() == {0}
    assert loss.late_commits == [journal.revision]
