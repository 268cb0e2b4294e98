"""docs/how-to/security.md: its rules are read, its commands run, and its tables are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from rota.core.access.document import read_document
from rota.core.access.rules import ROLES
from rota.protocol.calls import Action
from tests.support.ports import free_port
from tests.support.processes import Processes, rota_command

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "security.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\S+\.toml)\n")


def test_every_file_of_the_page_is_one_that_a_server_takes() -> None:
    read = {}
    for language, text in BLOCK.findall(PAGE):
        if language == "toml":
            named = NAMED.match(text)
            assert named is not None
            read[named[1]] = read_document(tomllib.loads(text))

    assert len(read["access.toml"].rules) == 3
    assert [issuer.kind for issuer in read["issuers.toml"].issuers] == ["oidc", "kubernetes"]
    assert set(read["quotas.toml"].quotas) == {"*", "experiments"}


def test_the_table_of_actions_is_the_codes() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 7]
    reported = {
        cells[0].strip(" `"): {role for role, cell in zip(ROLES, cells[2:], strict=True) if "✓" in cell}
        for cells in rows
    }

    assert reported == {action.value: {role for role, may in ROLES.items() if action in may} for action in Action}


@pytest.mark.slow
@pytest.mark.processes
def test_the_commands_of_the_page_do_what_it_says(processes: Processes, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "PATH": f"{rota_command().parent}:{os.environ['PATH']}",
        "ROTA_STORE": f"sqlite:///{tmp_path / 'rota.db'}",
        "ROTA_HTTP": address,
        "ROTA_URL": f"http://{address}",
    }
    for language, text in BLOCK.findall(PAGE):
        if language == "toml":
            named = NAMED.match(text)
            assert named is not None
            (tmp_path / named[1]).write_text(text)
        elif text.startswith("rota serve") and language == "sh":
            server = processes.rota(*text.split()[1:], env=environment, cwd=tmp_path)
            server.wait_for_url(f"http://{address}/readyz")
        elif language == "sh":
            command = ["bash", "-euo", "pipefail", "-c", text]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            assert "rota_" not in done.stdout + done.stderr
            if "groups delete" in text:
                assert "token:worker may not administer group finance/invoices: no rule allows it" in done.stderr
        else:
            assert language == "text", f"a block in {language} that nobody runs"
