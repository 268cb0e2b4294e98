"""docs/how-to/console.md: its commands run, its pictures are there, and it names every action and page."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from rota.server.console.actions import ACTIONS
from tests.docs.conftest import Reader
from tests.support.processes import rota_command

pytestmark = pytest.mark.processes

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "console.md").read_text()
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONFIRMED = re.compile(r"(groups (?:remove-member|delete))")
"""Commands that ask at a terminal. There is none here."""


@pytest.mark.slow
def test_every_command_does_what_the_text_says(reader: Reader) -> None:
    member_id = _a_member(reader.url)
    path = f"{rota_command().parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "ROTA_URL": reader.url}

    looking, acting = (
        subprocess.run(
            ["sh", "-ec", _CONFIRMED.sub(r"\1 --yes", block.replace("MEMBER", member_id))],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        for block in BLOCK.findall(PAGE)
    )

    assert "Stable for" in looking.stdout
    assert f"{member_id} at 127.0.0.1 leads" in looking.stdout
    assert acting.stderr.splitlines()[-1] == "group renderers is deleted"


def test_it_says_what_every_action_does() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \|", PAGE, re.MULTILINE)

    named = {
        "force a rebalance",
        "step down",
        "freeze",
        "end the freeze",
        "release quarantined units",
        "evict",
        "delete",
    }
    assert named <= set(rows)
    assert len(ACTIONS) == len(named)


def _a_member(url: str) -> str:
    body = {"protocol_type": "worker", "protocols": [{"name": "range"}], "client_id": "indexer-1"}
    with httpx.Client(base_url=f"{url}/v1/namespaces/default/groups/renderers/", timeout=30, trust_env=False) as http:
        member_id = str(http.post("join", json=body).json()["member_id"])
        http.post("join", json={**body, "member_id": member_id}).raise_for_status()
        http.post("sync", json={"member_id": member_id, "generation_id": 1}).raise_for_status()
    return member_id
