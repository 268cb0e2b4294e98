"""A kind of group of the user's own: members share key ranges, and are upgraded from v1 to v2 while they work.

`python ranges.py v1` says nothing of itself, and each member gets an equal part. `python ranges.py v2 4` says how many
cores it has, and gets so much more; it lists v1 as well, so the group goes on with v1 until the last old member is
gone, and chooses v2 in the next generation. An assignment is `first-last`, in both.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import accumulate, pairwise

import rota
from rota.client import Generation

KEYS = 1_000


def weight(protocol: str, metadata: bytes) -> int:
    """Only v2 says one."""
    return int(metadata) if protocol == "v2" else 1


def assign(generation: Generation) -> dict[str, bytes]:
    """Runs in the member that leads, whichever version that one is."""
    members = sorted(generation.members, key=lambda member: member.member_id)
    weights = [weight(generation.protocol_name, member.metadata) for member in members]
    ends = [KEYS * total // sum(weights) for total in accumulate(weights, initial=0)]
    return {
        member.member_id: f"{first}-{last - 1}".encode()
        for member, (first, last) in zip(members, pairwise(ends), strict=True)
    }


async def main(version: str, cores: str = "1") -> None:
    protocols = {"v1": b""} if version == "v1" else {"v2": cores.encode(), "v1": b""}
    async with rota.connect(os.environ.get("ROTA_URL", "http://127.0.0.1:8080")) as client:
        member = client.member(
            "ranges",
            protocol_type="key-ranges",
            protocols=protocols,
            assign=assign,
            on_assigned=lambda _added, held: print("works on", held.decode(), flush=True),
            on_revoked=lambda removed: print("stopped", removed.decode(), flush=True),
            on_lost=lambda removed: print("lost", removed.decode(), flush=True),
        )
        await member.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
