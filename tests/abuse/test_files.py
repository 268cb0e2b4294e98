"""More connections than the process may open files: the store keeps what it needs, and the service comes back."""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
import pytest

from rota.v1.admin_pb2 import ListGroupsRequest
from tests.abuse.attackers import all_closed, lines, until
from tests.abuse.target import DEADLINE_S, Target
from tests.grpc.clients import admin
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
    """Silent ones to both ports: the server closes some of them, and honest callers are served meanwhile."""
    target = Target(processes, tmp_path, sys.executable, "-c", WITH_FEW_FILES)
    async with target.unharmed(most_mib=30, what=f"{OFFERED} connections to each port for {FILES} files"):
        async with lines(target.port, OFFERED) as greedy, lines(target.grpc_port, OFFERED) as silent:
            assert open_files(target) < FILES - 32
            await target.still_serves()
            await all_closed(silent, DEADLINE_S)
            assert sum(line.closed.is_set() for line in greedy) >= OFFERED - FILES
            async with grpc.aio.insecure_channel(f"127.0.0.1:{target.grpc_port}") as channel:
                await admin(channel).ListGroups(ListGroupsRequest(namespace="default"), wait_for_ready=True)
        await until(lambda: open_files(target) < FILES // 2, DEADLINE_S)
    await target.close()


def open_files(target: Target) -> int:
    """Of the server."""
    return len(list(Path(f"/proc/{target.process.pid}/fd").iterdir()))
