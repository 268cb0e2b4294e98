"""`rota work`: a command runs on a share of the work, anew on each share; no other member has a part of it yet."""

from __future__ import annotations

import json
import re
import signal

import psutil
import pytest

from tests.exec.wrappers import (
    PRINT_ENVIRONMENT,
    STUBBORN,
    Wrappers,
    environment_of,
    guardian_of,
    pid_of,
    wait_until_dead,
)
from tests.support.processes import Process

pytestmark = pytest.mark.processes

# Writes when it starts and stops, and takes its time to stop. Appends, so that the lines of several are in one order.
WORKER = """
import os, signal, sys, time
def tell(what):
    line = f"{what} {os.environ['ROTA_PARTITIONS']}"
    print(line, flush=True)
    with open(sys.argv[1], "a") as log:
        log.write(f"{what} {os.environ['ROTA_PARTITIONS']}\\n")
def stop(number, frame):
    time.sleep(0.3)
    tell("stopped")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
tell("started")
while True:
    time.sleep(0.05)
"""


def started_on(wrapper: Process, count: int) -> str:
    """The partitions of the first run of a worker that has so many of them."""
    return wrapper.wait_for_line(rf"^started (\d+(?: \d+){{{count - 1}}})$")[1]


@pytest.mark.slow
def test_the_command_knows_its_share_and_sets_the_exit_code(wrappers: Wrappers) -> None:
    wrappers.put_topic(wrappers.group_id, 3)

    work = wrappers.work(wrappers.group_id, "python3", "-c", PRINT_ENVIRONMENT + "; raise SystemExit(9)")

    reported = environment_of(work)
    assert work.wait_for_exit() == 9
    assert reported["ROTA_PARTITIONS"] == "0 1 2"
    assert json.loads(reported["ROTA_ASSIGNMENT"]) == [{"topic": wrappers.group_id, "partitions": [0, 1, 2]}]
    assert int(reported["ROTA_FENCING_TOKEN"]) >= 1


@pytest.mark.slow
def test_a_worker_by_an_expression_takes_up_topics_as_they_come(wrappers: Wrappers) -> None:
    group = wrappers.group_id
    for topic in (f"{group}-1", f"{group}-x", f"{group}-13"):
        wrappers.put_topic(topic, 1)
    worker = "echo started $ROTA_ASSIGNMENT; exec sleep 60"
    options = ("--topic-regex", f"{group}-[0-9]+", "--except", f"{group}-13", "--topics-debounce-ms", "200")
    work = wrappers.work("", "sh", "-c", worker, options=options)
    assert json.loads(work.wait_for_line("^started (.*)$")[1]) == [{"topic": f"{group}-1", "partitions": [0]}]

    wrappers.put_topic(f"{group}-2", 1)

    work.wait_for_line(rf"^started .*{group}-2.*$")


@pytest.mark.thorough
def test_a_share_moves_only_once_its_command_has_stopped(wrappers: Wrappers) -> None:
    topic, log = wrappers.group_id, wrappers.folder / "log"
    wrappers.put_topic(topic, 4)
    command = ("python3", "-c", WORKER, log)
    first = wrappers.work(topic, *command)
    assert started_on(first, 4) == "0 1 2 3"

    second = wrappers.work(topic, *command)
    kept, moved = started_on(first, 2).split(), started_on(second, 2).split()

    assert sorted(kept + moved) == ["0", "1", "2", "3"]
    assert log.read_text().splitlines()[:2] == ["started 0 1 2 3", "stopped 0 1 2 3"]
    held: set[str] = set()
    for what, *partitions in map(str.split, log.read_text().splitlines()):
        assert what == "stopped" or not held.intersection(partitions), "granted twice"
        held = held.union(partitions) if what == "started" else held.difference(partitions)
    assert first.terminate() == 0
    started_on(second, 4)
    assert second.terminate() == 0


@pytest.mark.slow
def test_a_paused_worker_is_dead_before_its_share_moves(wrappers: Wrappers) -> None:
    wrappers.put_topic(wrappers.group_id, 1)
    wrappers = wrappers.soon_lost()
    paused = wrappers.work(wrappers.group_id, "python3", "-c", STUBBORN)
    pids = [pid_of(who, paused) for who in ("child", "grandchild")]
    other = wrappers.work(wrappers.group_id, "python3", "-c", STUBBORN)
    guardian_of(other)
    paused.pause()

    pid_of("child", other)

    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)
    paused.resume()
    other.send(signal.SIGKILL)
    paused.wait_until(lambda: paused.output().count("\ngrandchild") == 2, "second run", 15)
    paused.send(signal.SIGKILL)
    wait_until_dead(*map(int, re.findall(r"^\w*child (\d+)$", paused.output(), re.MULTILINE)))
