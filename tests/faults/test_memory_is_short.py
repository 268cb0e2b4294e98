"""A server whose address space is nearly used up: it rejects calls for now, calls no request bad, and lives on."""

from __future__ import annotations

import asyncio
import json
import re
import resource
from collections import Counter
from pathlib import Path

import pytest

from tests.http.odd_requests import take_answer
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes

LEFT_BYTES = 8 * 1024 * 1024
CALLS = 60
JOIN = json.dumps({"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": "A" * 1_300_000}]}).encode()
REQUEST = (
    b"POST /v1/namespaces/default/groups/g/join HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(JOIN), JOIN)
)


def limit_address_space(server: Process, left_bytes: int | None) -> None:
    used_kb = int(re.findall(r"VmSize:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())[0])
    limit = resource.RLIM_INFINITY if left_bytes is None else used_kb * 1024 + left_bytes
    resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


async def status_of_a_large_join(port: int) -> int:
    """The status of the answer; 0 if the connection ends without one, so that the client tries again."""
    received = b""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(REQUEST)
            async with asyncio.timeout(60):
                while (taken := take_answer(received, to_head=False)) is None:
                    if not (part := await reader.read(65_536)):
                        return 0
                    received += part
                return taken[0].status
        finally:
            writer.close()
    except ConnectionError:
        return 0


async def test_a_server_without_memory_answers_503(processes: Processes, tmp_path: Path) -> None:
    port = free_port()
    server = processes.rota("serve", "--store", f"sqlite:///{tmp_path}/rota.db", "--http", f"127.0.0.1:{port}")
    server.wait_for_url(f"http://127.0.0.1:{port}/readyz")
    limit_address_space(server, LEFT_BYTES)

    statuses = Counter(await asyncio.gather(*(status_of_a_large_join(port) for _ in range(CALLS))))

    limit_address_space(server, None)
    print(dict(statuses))
    assert statuses.keys() <= {0, 413, 503}
    assert statuses[503]
    assert "short of memory" in server.output()
    server.wait_for_url(f"http://127.0.0.1:{port}/readyz")
    # 413 is the answer to such a join.
    assert await status_of_a_large_join(port) == 413
