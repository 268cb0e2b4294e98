"""A member at work, by the SDK of whichever release is on the path: it prints what begins, goes on, and ends.

python member_program.py URL,… GROUP: a share of topic `work`, and a candidate of the election `GROUP-leader`.
"""

import asyncio
import sys
from functools import partial

import rota
from rota.client import Election, LeadershipLost, Shard

PAUSE_S = 0.2


async def work(group: str, shard: Shard) -> None:
    name = f"{group}/{shard.partition}"
    say("began", name)
    try:
        offset = 0
        while True:
            offset += 1
            await shard.commit(offset)
            say("alive", name)
            await asyncio.sleep(PAUSE_S)
    finally:
        say("ended", name)


async def lead(group: str, election: Election) -> None:
    async for term in election.terms():
        say("began", f"{group}-leader")
        try:
            while True:
                term.raise_if_lost()
                say("alive", f"{group}-leader")
                await asyncio.sleep(PAUSE_S)
        except LeadershipLost:
            say("ended", f"{group}-leader")


def say(what: str, name: str) -> None:
    print(what, name, flush=True)


async def main(urls: list[str], group: str) -> None:
    async with rota.connect(urls) as client, client.leader(f"{group}-leader") as election:
        leading = asyncio.create_task(lead(group, election))
        try:
            await client.worker_pool(group, "work", partial(work, group)).run()
        finally:
            leading.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].split(","), sys.argv[2]))
