"""A leader that is to be killed: a member and little else, for a process frees its memory before its connections end.

`python -m bench.leading GRPC_PORT GROUP_ID PLAIN_PORT`: it also holds a plain connection, which ends with it.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvloop

from bench.servers import HOST
from bench.stream_members import MemberStream, StreamCrowd


async def lead(port: int, group_id: str) -> None:
    """Lead a group, joining again with each newcomer, until killed. A lost stream counts as leaving at once."""
    stream = MemberStream(port, leave_after_ms=0)
    crowd = StreamCrowd(group_id, [stream], is_election=True)
    crowd.grow(1)
    await crowd.all_hold_one_generation()
    print("leads", flush=True)
    await stream.until_over()


if __name__ == "__main__":
    with (
        socket.create_connection((HOST, int(sys.argv[3]))),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(lead(int(sys.argv[1]), sys.argv[2]))
