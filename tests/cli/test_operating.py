"""What an operator asks first: why is this group so, which groups should I look at, is the server well?"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess

import httpx
import pytest

from tests.cli.conftest import Rota
from tests.support.processes import rota_command

pytestmark = pytest.mark.processes


def join_again(rota: Rota, group_id: str) -> None:
    """A newcomer is in, and the member that was there has yet to join again."""
    body = {"protocol_type": "worker", "protocols": [{"name": "range"}], "client_id": "late", "wait_ms": 0}
    url = f"{rota.url}/v1/namespaces/{rota.namespace}/groups/{group_id}/join"
    with httpx.Client(trust_env=False, timeout=30) as http:
        member_id = http.post(url, json=body).json()["member_id"]
        assert http.post(url, json={**body, "member_id": member_id}).json()["outcome"] == "pending"


def test_top_shows_the_groups_of_all_namespaces(rota: Rota) -> None:
    rota.member("a-calm")
    rota("--namespace", "elsewhere", "offsets", "set", "--force", "moved", "t", "0", "7")

    shown = json.loads(rota("top", "-A", "-n", "200", "-o", "json").out)
    table = rota("top", "-A", "--once").out.splitlines()

    assert {(rota.namespace, "a-calm"), ("elsewhere", "moved")} <= {
        (row["namespace"], row["group_id"]) for row in shown
    }
    assert table[0].split()[:2] == ["NAMESPACE", "GROUP-ID"]


MISCHIEF = "a\nbc \x1b]0;mine\x07 [/red]"
"""A line of its own, the title of the window, and a tag that `rota top` draws with its table."""


def test_no_reason_of_a_member_gets_out_of_its_line(rota: Rota) -> None:
    rota.member("indexers", MISCHIEF)

    printed = [
        rota("groups", "why", "indexers").out,
        rota("groups", "describe", "indexers").out,
        rota("top", "--once").out,
        rota("groups", "watch", "indexers", "--after", "0", "-n", "3", "-o", "table").out,
    ]

    assert all(r"a\nbc \x1b]0;mine\x07 [/red]" in text for text in printed), printed
    assert all(text.replace("\n", "").isprintable() for text in printed)


@pytest.mark.parametrize("output", ["json", "ndjson"])
def test_no_reason_of_a_member_controls_a_terminal(rota: Rota, output: str) -> None:
    """In a document a character is escaped as JSON has it, and reads the same."""
    rota.member("indexers", "\x9b31m red \x7f\u202e\U000e0041")

    printed = [
        rota("groups", "describe", "indexers", "-o", output).out,
        rota("groups", "history", "indexers", "-o", output).out,
    ]

    assert all(text.replace("\n", "").isprintable() for text in printed)
    read = [json.loads(part) for text in printed for part in (text.splitlines() if output == "ndjson" else [text])]
    assert "\x9b31m red \x7f\u202e\U000e0041" in json.dumps(read, ensure_ascii=False)


@pytest.mark.slow
def test_top_is_live_at_a_terminal(rota: Rota) -> None:
    rota.member("indexers", MISCHIEF)
    master, slave = pty.openpty()
    environment = {"PATH": "", "TERM": "xterm", "COLUMNS": "150", "LINES": "30", "ROTA_URL": rota.url}
    command = [str(rota_command()), "--namespace", rota.namespace, "top", "--all-namespaces", "--interval", "0.2"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as top:
        os.close(slave)
        _read_until(master, "[/red]")
        join_again(rota, "indexers")
        _read_until(master, "PreparingRebalance")
        top.send_signal(signal.SIGINT)
        assert top.wait(timeout=60) == 130
    os.close(master)


def _read_until(terminal: int, text: str) -> None:
    shown = ""
    while text not in shown:
        assert select.select([terminal], [], [], 30)[0], f"no {text!r} in {shown!r}"
        shown += os.read(terminal, 65_536).decode(errors="replace")


def test_doctor_finds_a_well_server_well(rota: Rota) -> None:
    rota.member("indexers")

    done = rota("doctor", "-o", "json")

    checks = {check["check"]: check for check in json.loads(done.out)}
    # A busy machine is no fault of the server's.
    unwell = {name for name, check in checks.items() if not check["ok"] and "overloaded" not in check["found"]}
    assert unwell == set()
    assert (done.exit_code == 0) is all(check["ok"] for check in checks.values())
    assert checks.keys() >= {"server", "ready", "clock", "store", "shards", "event loop", "groups"}
    assert "this replica owns 4 of 4" in checks["shards"]["found"]


def test_copies_that_fence_each_other_show_in_all_commands(rota: Rota) -> None:
    starts = [rota.member("indexers", instance="pay-1") for _ in range(4)]

    (listed,) = json.loads(rota("groups", "list", "-o", "json").out)
    described = rota("groups", "describe", "indexers").out
    why = rota("groups", "why", "indexers").out
    checks = {check["check"]: check for check in json.loads(rota("doctor", "-o", "json").out)}

    assert listed["takeovers"] == 3
    assert re.search(r"takeovers: +3\n", described)
    assert starts[-1] in described
    assert why.startswith("pay-1 was taken over 3 times within 10 min")
    assert not checks["groups"]["ok"]
    assert checks["groups"]["found"].startswith("1 of 1 group in trouble: indexers: pay-1 was taken over 3 times")
    assert checks["groups"]["found"].endswith(f" indexers --since 10m --namespace {rota.namespace}")
