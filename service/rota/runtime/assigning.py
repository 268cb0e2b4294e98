"""Computes what groups leave to the server: gathers the topics, assigns off the loop, and hands it to the shard.

One task per generation that waits. What a group has been assigned is looked at again when its namespace's topics have
changed, and now and then in case nobody said so: where a topic grew, was put or deleted, or changed its attributes, the
group gets a new generation without joining again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from rota.group.assignment import AssignmentJob
from rota.group.result import Timer
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import ListTopics, ListTopicsReply, Request
from rota.replica.ports import Answer
from rota.runtime.host import ShardHost
from rota.types import TopicFacts

TOPICS_OF_A_PAGE = 1_000
RETRY_S = 0.25
"""How soon the topics are asked for again while their shards are between two owners."""
LOOK_AGAIN_S = 10.0
"""How often to look at topics of which nobody said that they have changed: a peer's word may be lost."""
LINGER_S = 0.05
"""After word of a change, for others of the same moment."""
PAUSE_S = 0.5
"""Between two looks: who registers many topics one by one must not cause a generation for each."""
INLINE_SIZE = 2_000
"""Partitions and members up to which a thread would cost more than it spares the event loop."""

logger = logging.getLogger(__name__)


class _Assigned(NamedTuple):
    """Where a group is, and what its topics were when it was assigned."""

    host: ShardHost
    topics: Mapping[str, TopicFacts] | None


class TopicsUnknown(Exception):
    """Not every shard says which topics it has."""


class ServerAssigner:
    """Run `run()` as a task that somebody awaits; `want` may be called at any time."""

    def __init__(self, ask: Callable[[Request], Awaitable[Answer]]) -> None:
        self.ask = ask
        """Whom the topics of all shards are asked of: the coordinator, or the one that also asks the peers."""
        self._wanted: asyncio.Queue[tuple[ShardHost, Timer]] = asyncio.Queue()
        self._assigned: dict[tuple[str, str], _Assigned] = {}
        """The groups to look at again."""
        self._changed: set[str] = set()
        """Namespaces whose topics have changed since somebody looked."""
        self._changes = 0
        self._news = asyncio.Event()

    def want(self, host: ShardHost, timer: Timer) -> None:
        """A group's new generation is for the server to assign."""
        self._wanted.put_nowait((host, timer))

    def look_again(self, namespace: str) -> None:
        """Topics of this namespace have changed."""
        self._changed.add(namespace)
        self._changes += 1
        self._news.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_at_topics())
            while True:
                host, timer = await self._wanted.get()
                tasks.create_task(self._assign_until_done(host, timer.namespace, timer.group_id))

    async def _assign_until_done(self, host: ShardHost, namespace: str, group_id: str) -> None:
        """Until it is assigned, waits for nothing any more, or is another replica's to assign."""
        while not host.dropped and (job := host.shard.assignment_job(namespace, group_id)) is not None:
            changes = self._changes
            try:
                topics = await self._wanted_topics(job, {})
            except TopicsUnknown:
                await asyncio.sleep(RETRY_S)
                continue
            is_known = host.finish_job(job, await _outcome(job, topics))
            # If it has changed meanwhile, what it was assigned is not known: it is looked at again in any case.
            self._assigned[namespace, group_id] = _Assigned(host, topics if is_known else None)
            if changes != self._changes:
                # Who was told meanwhile did not know of this group yet.
                self.look_again(namespace)
            return

    async def _look_at_topics(self) -> None:
        while True:
            changed = await self._changed_topics()
            listed: dict[str, Mapping[str, TopicFacts]] = {}
            for key, assigned in list(self._assigned.items()):
                if changed and key[0] not in changed:
                    continue
                try:
                    await self._look_at_group(key, assigned, listed)
                except TopicsUnknown:
                    self._changed |= changed
            if changed:
                await asyncio.sleep(PAUSE_S)

    async def _changed_topics(self) -> set[str]:
        """Return once topics have changed, and of which namespaces; empty: nobody has said so for long."""
        if not self._changed:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._news.wait()
        if self._changed:
            await asyncio.sleep(LINGER_S)
        changed, self._changed = self._changed, set()
        return changed

    async def _look_at_group(
        self, key: tuple[str, str], assigned: _Assigned, listed: dict[str, Mapping[str, TopicFacts]]
    ) -> None:
        job = None if assigned.host.dropped else assigned.host.shard.assignment_job(*key)
        if job is None:
            # If it moved its new owner sees to it, if it joins anew the next generation does.
            self._assigned.pop(key, None)
            return
        topics = await self._wanted_topics(job, listed)
        if topics != assigned.topics and assigned.host.finish_job(job, await _outcome(job, topics)):
            self._assigned[key] = _Assigned(assigned.host, topics)

    async def _wanted_topics(
        self, job: AssignmentJob, listed: dict[str, Mapping[str, TopicFacts]]
    ) -> dict[str, TopicFacts]:
        """The topics that the group is about. `listed` are those of namespaces that were asked for already."""
        if job.side.wants_topic is None:
            return {}
        if job.namespace not in listed:
            listed[job.namespace] = await self._topics(job.namespace)
        wanted = job.side.wants_topic(job.generation)
        return {name: facts for name, facts in listed[job.namespace].items() if wanted(name)}

    async def _topics(self, namespace: str) -> dict[str, TopicFacts]:
        """All topics of a namespace, from all shards."""
        found: dict[str, TopicFacts] = {}
        after, more = "", True
        while more:
            reply = (await self.ask(ListTopics(namespace, after=after, limit=TOPICS_OF_A_PAGE))).reply
            if not isinstance(reply, ListTopicsReply) or reply.error is not ErrorCode.NONE:
                raise TopicsUnknown
            for topic in reply.topics:
                found[topic.topic] = TopicFacts(topic.partitions, dict(topic.attributes))
                after = topic.topic
            more = reply.more and bool(reply.topics)
        return found


async def _outcome(job: AssignmentJob, topics: Mapping[str, TopicFacts]) -> Mapping[str, bytes] | str:
    """The assignments, or why there are none: a strategy that breaks must not end the task of all groups."""
    size = sum(facts.partitions for facts in topics.values()) + len(job.generation.members)
    try:
        if size <= INLINE_SIZE:
            return job.side.assign(job.generation, topics)
        return await asyncio.to_thread(job.side.assign, job.generation, topics)
    except Exception as error:
        logger.exception("a strategy broke", extra={"group_id": job.group_id, "namespace": job.namespace})
        return f"{type(error).__name__}: {error}"
