"""`rota lead` beside modules of other programs, without a standard output, and with commands of strange names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.exec.wrappers import Wrappers

pytestmark = pytest.mark.processes


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["json", "select", "rota"])
def test_modules_in_the_working_folder_are_not_imported(wrappers: Wrappers, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / f"{name}.py").write_text('raise SystemExit("this is another program")\n')

    command = (sys.executable, "-P", "-c", "exit(7)")
    environment = {"ROTA_URL": wrappers.url}
    lead = wrappers.processes.rota("lead", wrappers.group_id, "--", *command, env=environment, cwd=folder)

    assert lead.wait_for_exit() == 7, lead.output()


def test_a_command_without_an_output_ends_with_its_own_code(wrappers: Wrappers) -> None:
    script = f'exec "$0" lead {wrappers.group_id} -- {sys.executable} -c "exit(7)" >&-'
    rota = str(Path(sys.executable).with_name("rota"))

    lead = wrappers.processes.start("sh", "-c", script, rota, env={"ROTA_URL": wrappers.url})

    assert lead.wait_for_exit() == 7, lead.output()
    assert "Traceback" not in lead.output()


@pytest.mark.parametrize(("name", "shown"), [("", "''"), (os.fsdecode(b"no-\xff-text"), "no-")])
def test_a_command_of_a_strange_name_is_not_found(wrappers: Wrappers, name: str, shown: str) -> None:
    lead = wrappers.lead(name)

    assert lead.wait_for_exit() == 127, lead.output()
    assert f"rota: {shown}" in lead.output()
    assert "Traceback" not in lead.output()
