"""More connections than the process may open files: the store keeps what it needs, and the service comes back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.abuse.attackers import lines, until
from tests.abuse.target import DEADLINE_S, Target
from tests.support.processes import Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FILES = 256
OFFERED = 400
WITH_FEW_FILES = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
os.execv(sys.argv[1], sys.argv[1:])
"""


async def test_connections_never_take_the_last_file(processes: Processes, tmp_path: Path) -> None:
    target = Target(processes, tmp_path, sys.executable, "-c", WITH_FEW_FILES)
    async with target.unharmed(most_mib=30, what=f"{OFFERED} connections for {FILES} files"):
        async with lines(target.port, OFFERED) as greedy:
            await until(lambda: sum(line.status == 503 for line in greedy) >= OFFERED - FILES, DEADLINE_S)
            assert open_files(target) < FILES - 32
        await until(lambda: open_files(target) < FILES // 2, DEADLINE_S)
    await target.close()


def open_files(target: Target) -> int:
    """Of the server."""
    return len(list(Path(f"/proc/{target.process.pid}/fd").iterdir()))
