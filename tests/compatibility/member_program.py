"""A member at work, by the SDK of whichever release is on the path: it prints what begins, goes on, and ends.

python member_program.py URL,… GROUP [consumer]: a share of topic `work`, and a candidate of election `GROUP-leader`.
The share is a worker pool's, or a consumer's.
"""

import asyncio
import signal
import sys
from functools import partial

import rota
from rota.client import Client, CoordinatorError, Election, LeadershipLost, OffsetToCommit, Shard, TopicPartition

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


async def consume(group: str, client: Client) -> None:
    def assigned(added: tuple[TopicPartition, ...], _held: tuple[TopicPartition, ...]) -> None:
        for place in added:
            say("began", f"{group}/{place.partition}")

    def taken(removed: tuple[TopicPartition, ...]) -> None:
        for place in removed:
            say("ended", f"{group}/{place.partition}")

    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with client.consumer(group, "work", on_assigned=assigned, on_revoked=taken, on_lost=taken) as consumer:
        offset = 0
        while not stopping.is_set():
            offset += 1
            held = consumer.assignment or ()
            try:
                await consumer.commit([OffsetToCommit(place.topic, place.partition, offset) for place in held])
            except CoordinatorError as error:
                say("refused", f"{group}:{type(error).__name__}")
            else:
                for place in held:
                    say("alive", f"{group}/{place.partition}")
            await asyncio.sleep(PAUSE_S)


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


async def main(urls: list[str], group: str, *kind: str) -> None:
    async with rota.connect(urls) as client, client.leader(f"{group}-leader") as election:
        leading = asyncio.create_task(lead(group, election))
        try:
            if kind:
                await consume(group, client)
            else:
                await client.worker_pool(group, "work", partial(work, group)).run()
        finally:
            leading.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].split(","), *sys.argv[2:]))
