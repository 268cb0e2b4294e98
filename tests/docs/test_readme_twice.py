"""The README's single writer with curl, started twice under one instance id: only the later one may write."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.docs.test_readme import BLOCK, DOCUMENTED_URL, README
from tests.processes.server import Server
from tests.support.curl import put_curl_on_path
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

(SCRIPT,) = [text for _, text in BLOCK.findall(README[README.index("## A single writer, with curl") :])[:1]]


class Register:
    """The resource of the writes: it keeps the highest token that it has seen, and refuses lower ones."""

    def __init__(self) -> None:
        self.highest = 0
        self.written: list[str] = []

    def write(self, writer: str, token: int) -> bool:
        if token < self.highest:
            return False
        self.highest = token
        self.written.append(writer)
        return True


def test_the_second_of_two_single_writers_fences_the_first(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    server.start_and_wait()
    register = Register()

    first, first_token = _holder(server.url, tmp_path)
    assert register.write("first", first_token)
    second, second_token = _holder(server.url, tmp_path)

    assert register.write("second", second_token)
    assert not register.write("first, cut off", first_token)
    assert register.written == ["first", "second"]
    group = f"{server.url}/v1/namespaces/default/groups/billing-writer"
    for shown in ({"member_id": first}, {}):
        assert httpx.post(f"{group}/fence", json={"fencing_token": first_token, **shown}).status_code in (404, 428)
    leader = httpx.get(f"{group}/leader").json()
    assert (leader["leader_id"], leader["fencing_token"]) == (second, second_token)


def _holder(url: str, folder: Path) -> tuple[str, int]:
    """The member id and the token of one run of the script, as its variables have them."""
    script = SCRIPT.replace(DOCUMENTED_URL, url) + '\necho "HOLDER $member $token"\n'
    environment = {**os.environ, "PATH": f"{put_curl_on_path(folder)}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-euc", script], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r"HOLDER (\S+) (\d+)", ran.stdout)
    assert found is not None, ran.stdout
    assert '"code"' not in ran.stdout, "each call of the script is accepted"
    return found[1], int(found[2])
