"""The shell of `rota.group.plan`: lists the topics of a namespace, and makes plans beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from rota.group.plan import make_plan
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import GroupSnapshot, ListTopics, ListTopicsReply, PlanGroup, PlanReply, Reply, Request
from rota.replica.ports import Answer
from rota.types import TopicFacts


async def list_all_topics(ask: Callable[[Request], Awaitable[Answer]], namespace: str) -> dict[str, TopicFacts] | Reply:
    """The topics of a namespace, or the reply with the error if not all are known now."""
    topics: dict[str, TopicFacts] = {}
    page = ListTopicsReply(more=True)
    while page.more:
        after = page.topics[-1].topic if page.topics else ""
        listed = (await ask(ListTopics(namespace, after))).reply
        if not isinstance(listed, ListTopicsReply) or listed.error is not ErrorCode.NONE:
            return listed
        page = replace(listed, more=listed.more and bool(listed.topics))
        topics |= {each.topic: TopicFacts(each.partitions, dict(each.attributes)) for each in page.topics}
    return topics


class Planner:
    """Makes the plans for groups of this replica. `ask` reaches the shards of all replicas."""

    def __init__(self, ask: Callable[[Request], Awaitable[Answer]], limits: Limits) -> None:
        self._ask = ask
        self._limits = limits
        # A plan takes as long as an assignment. Many at once would slow down the assignments that groups wait for.
        self._one_at_a_time = asyncio.Lock()

    async def finish(self, request: PlanGroup, answer: Answer) -> Answer:
        """The plan, of the answer with the group's snapshot. An answer without one is an error, and returned as it is.

        `COORDINATOR_LOAD_IN_PROGRESS` where not all topics are known now.
        """
        if not isinstance(answer.reply, PlanReply) or answer.reply.snapshot is None:
            return answer
        async with self._one_at_a_time:
            return await self._plan(request, answer, answer.reply.snapshot)

    async def _plan(self, request: PlanGroup, answer: Answer, snapshot: GroupSnapshot) -> Answer:
        topics = await list_all_topics(self._ask, request.namespace)
        if not isinstance(topics, dict):
            return Answer(refuse(request, topics.error, topics.detail))
        limit = self._limits.max_partitions_per_request
        return replace(answer, reply=await asyncio.to_thread(make_plan, request, snapshot, topics, limit))
