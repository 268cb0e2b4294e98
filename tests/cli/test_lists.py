"""Lists: sorted, limited, watched, fitted to the terminal; history; questions before something is taken away."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from rich.cells import cell_len

from rota.cli.output import fitting, print_table
from tests.cli.conftest import Rota
from tests.support.processes import Processes, rota_command

pytestmark = pytest.mark.processes


def test_groups_are_sorted_and_limited(rota: Rota) -> None:
    rota.member("b")
    rota("offsets", "set", "--force", "a", "t", "0", "7")
    rota("offsets", "set", "--force", "c", "t", "0", "7")

    assert rota("groups", "list", "--limit", "2", "-o", "name").out.split() == ["a", "b"]
    assert rota("groups", "list", "--sort", "-members", "--limit", "1", "-o", "name").out.split() == ["b"]
    assert rota("groups", "list", "--sort", "-group-id", "-o", "name").out.split() == ["c", "b", "a"]
    wrong = rota("groups", "list", "--sort", "stat")
    assert (wrong.exit_code, wrong.err) == (2, "rota: unknown column 'stat'; did you mean 'state'?\n")


def test_lists_are_of_all_namespaces_where_that_is_asked(rota: Rota) -> None:
    rota("offsets", "set", "--force", "a", "t", "0", "7")
    rota("--namespace", "only-topics", "topics", "put", "words", "-p", "2")
    rota("--namespace", "staging", "offsets", "set", "--force", "b", "t", "0", "7")

    groups = rota("groups", "list", "--all-namespaces", "--sort", "-namespace", "-o", "ndjson").out
    topics = rota("topics", "list", "-A", "-o", "ndjson").out
    first = rota("groups", "list", "-A", "--sort", "group_id", "--limit", "1", "-o", "name").out
    wrong = rota("groups", "list", "--sort", "namespace")

    assert ("staging", "b") in (
        own := [(each["namespace"], each["group_id"]) for each in map(json.loads, groups.split("\n")[:-1])]
    )
    assert (rota.namespace, "a") in own
    assert ("only-topics", "words") in [
        (each["namespace"], each["topic"]) for each in map(json.loads, topics.split("\n")[:-1])
    ]
    assert first.split() == ["a"]
    assert wrong.exit_code == 2


def test_offsets_are_sorted_by_when_they_were_committed(rota: Rota) -> None:
    for partition in ("2", "0", "1"):
        rota("offsets", "set", "--force", "a", "t", partition, "7")

    latest = rota("offsets", "list", "a", "--sort", "-committed", "--limit", "1", "-o", "name")

    assert latest.out.split() == ["t/1"]


def test_a_watched_list_is_printed_again_when_it_changes(rota: Rota, processes: Processes) -> None:
    rota("topics", "put", "words", "-p", "1")
    watching = processes.rota("topics", "list", "--watch", "-o", "ndjson", env=rota.environment())
    watching.wait_for_line('"partitions":1')

    rota("topics", "put", "words", "-p", "2")

    watching.wait_for_line('"partitions":2')
    assert len(watching.output().splitlines()) == 2


@pytest.mark.parametrize(
    ("widths", "columns", "fitted"),
    [
        ([10, 20, 5], 80, [10, 20, 5]),
        ([10, 60, 40], 80, [10, 33, 33]),
        ([10, 60, 5], 40, [10, 21, 5]),
        ([41, 41, 41], 20, [12, 12, 12]),
    ],
)
def test_the_widest_columns_give_way(widths: list[int], columns: int, fitted: list[int]) -> None:
    assert fitting(widths, columns) == fitted


def test_columns_are_aligned_by_the_cells_that_a_terminal_draws(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("漢字", "x"), ("ab", "y")])

    lines = capsys.readouterr().out.splitlines()
    assert [cell_len(line.rpartition(" ")[0]) for line in lines] == [5, 5]


def test_history_is_bounded_and_without_commits(rota: Rota) -> None:
    member_id = rota.member("indexers")
    commit(rota, "indexers", member_id)

    lines = rota("groups", "history", "indexers").out.splitlines()
    last = json.loads(rota("groups", "history", "indexers", "-n", "1", "-o", "json").out)
    kinds = rota("groups", "history", "indexers", "--kind", "member_joined", "-o", "ndjson").out.splitlines()
    commits = rota("groups", "history", "indexers", "--commits", "-n", "1").out

    assert len(lines) == 5
    assert "joins: to work" in lines[0]
    assert [event["kind"] for event in last] == ["assignment_synced"]
    assert [json.loads(line)["kind"] for line in kinds] == ["member_joined"]
    assert "commits t/0 at 7" in commits


def test_history_is_of_a_time_and_of_a_group_that_is_there(rota: Rota) -> None:
    rota.member("indexers")

    assert len(rota("groups", "history", "indexers", "--since", "1h").out.splitlines()) == 5
    assert rota("groups", "history", "indexers", "--since", "2999-01-01").out == ""
    wrong_time = rota("groups", "history", "indexers", "--since", "yesterday")
    assert (wrong_time.exit_code, wrong_time.err.count("\n")) == (2, 1)
    wrong_kind = rota("groups", "history", "indexers", "--kind", "member_join")
    assert (wrong_kind.exit_code, wrong_kind.err) == (
        2,
        "rota: unknown kind 'member_join'; did you mean 'member_joined'?\n",
    )
    assert rota("groups", "history", "nobody").exit_code == 3


def test_watch_leaves_out_commits_and_other_kinds(rota: Rota) -> None:
    member_id = rota.member("indexers")
    commit(rota, "indexers", member_id)
    rota("groups", "rebalance", "indexers")

    past = ("groups", "watch", "indexers", "--after", "0", "-n", "2")
    kinds = [json.loads(line)["kind"] for line in rota(*past, "--kind", "rebalance_started").out.splitlines()]
    without = [json.loads(line)["kind"] for line in rota(*past[:-1], "6", "--no-commits").out.splitlines()]

    assert kinds == ["rebalance_started", "rebalance_started"]
    assert without[-1] == "rebalance_started"
    assert "offsets_committed" not in without


@pytest.mark.parametrize(
    "command",
    [
        "groups delete indexers",
        "groups remove-member indexers member",
        "offsets delete indexers t 0",
        "topics delete words",
        "journal prune --keep-days 3",
    ],
)
def test_nothing_is_taken_away_unasked(rota: Rota, command: str) -> None:
    rota("topics", "put", "words", "-p", "1")
    rota("offsets", "set", "--force", "indexers", "t", "0", "7")

    refused = rota(*command.split(), ROTA_STORE=rota.store_url)

    assert (refused.exit_code, refused.out) == (2, "")
    assert refused.err.endswith("? There is no terminal: pass --yes to confirm\n")
    assert rota("topics", "list", "-o", "name").out == "words\n"
    assert rota("groups", "list", "-o", "name").out == "indexers\n"


@pytest.mark.parametrize(("answer", "left", "exit_code"), [("y\n", "", 0), ("n\n", "words\n", 1)])
def test_a_terminal_is_asked(rota: Rota, answer: str, left: str, exit_code: int) -> None:
    rota("topics", "put", "words", "-p", "1")
    with terminal(80) as (user, program):
        os.write(user, answer.encode())
        command = [str(rota_command()), "topics", "delete", "words"]
        asked = subprocess.run(
            command, stdin=program, env=rota.environment(), capture_output=True, text=True, timeout=60, check=False
        )

    assert f"Delete topic words of namespace {rota.namespace}, and the progress of all groups in it?" in asked.stderr
    assert asked.returncode == exit_code
    assert rota("topics", "list", "-o", "name").out == left


def commit(rota: Rota, group_id: str, member_id: str) -> None:
    url = f"{rota.url}/v1/namespaces/{rota.namespace}/groups/{group_id}/offsets"
    body = {"member_id": member_id, "generation_id": 1, "offsets": [{"topic": "t", "partition": 0, "offset": 7}]}
    with httpx.Client(trust_env=False, timeout=30) as http:
        http.post(url, json=body).raise_for_status()


@contextmanager
def terminal(columns: int) -> Iterator[tuple[int, int]]:
    """Both ends of a terminal of this width: the one of its user, and the one of programs."""
    ends = pty.openpty()
    fcntl.ioctl(ends[1], termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)
