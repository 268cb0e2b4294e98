"""A leader that is to be killed: a member over gRPC and little else, as a small sidecar is.

A kernel frees the memory of a process before it ends its connections, about 0.1 ms for each MB. So this imports gRPC,
the messages and what sends them: no HTTP client, no SDK, no uvloop.

`python -m bench.leading GRPC_PORT GROUP_ID PLAIN_PORT`: it also holds a plain connection, which ends with it.
"""

from __future__ import annotations

import asyncio
import socket
import sys

from bench.setting import HOST
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
    with socket.create_connection((HOST, int(sys.argv[3]))):
        asyncio.run(lead(int(sys.argv[1]), sys.argv[2]))
