"""The class of the error of every call, by the coordinator's answer and by the way in which none comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from rota.client import Client, Consumer, CoordinatorUnreachable, OffsetToCommit, Shard, TopicPartitions
from rota.client import errors as sdk
from rota.client.errors import UnreachableKind
from rota.client.transports import Answer
from rota.client.transports.http import HttpTransport
from rota.core.assignors import TopicPartition
from rota.core.replica import ports
from rota.protocol.calls import CALLS, refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import CommitOffsets, FetchOffsets, LeaveGroup, Request, VerifyFence
from rota.protocol.wire.replies import Received
from rota.server.http.rendered import render_answer
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import SESSION_S, Cable, a_coordinator, until
from tests.client.virtual_time import in_virtual_time
from tests.simulation.groups.http_road import ADDRESS, _decoded, _response

CLASSES: dict[ErrorCode, type[sdk.CoordinatorError]] = {
    ErrorCode.UNKNOWN_MEMBER_ID: sdk.MembershipLost,
    ErrorCode.ILLEGAL_GENERATION: sdk.MembershipLost,
    ErrorCode.REBALANCE_IN_PROGRESS: sdk.RebalanceInProgress,
    ErrorCode.MEMBER_ID_REQUIRED: sdk.RebalanceInProgress,
    ErrorCode.FENCED_INSTANCE_ID: sdk.FencedInstanceId,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: sdk.InvalidRequest,
    ErrorCode.INVALID_GROUP_ID: sdk.InvalidRequest,
    ErrorCode.INVALID_SESSION_TIMEOUT: sdk.InvalidRequest,
    ErrorCode.GROUP_MAX_SIZE_REACHED: sdk.Unavailable,
    ErrorCode.GROUP_ID_NOT_FOUND: sdk.NotFound,
    ErrorCode.GROUP_DELETED: sdk.NotFound,
    ErrorCode.NON_EMPTY_GROUP: sdk.InvalidRequest,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: sdk.InvalidRequest,
    ErrorCode.NOT_COORDINATOR: sdk.Unavailable,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: sdk.Unavailable,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: sdk.Unavailable,
    ErrorCode.ASSIGNMENT_FAILED: sdk.RebalanceInProgress,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: sdk.InvalidRequest,
    ErrorCode.REVISION_OUT_OF_RANGE: sdk.RevisionOutOfRange,
    ErrorCode.INVALID_REQUEST: sdk.InvalidRequest,
    ErrorCode.UNKNOWN_TOPIC: sdk.NotFound,
    ErrorCode.INVALID_PARTITIONS: sdk.InvalidRequest,
    ErrorCode.PAYLOAD_TOO_LARGE: sdk.InvalidRequest,
    ErrorCode.THROTTLED: sdk.Throttled,
    ErrorCode.UNAUTHENTICATED: sdk.AccessDenied,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: sdk.AccessDenied,
}
"""What a call raises that keeps getting this answer."""

COMMITTED_LATER = {
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.THROTTLED,
    ErrorCode.REBALANCE_IN_PROGRESS,
}
"""Answers after which a commit is repeated for as long as the share is held."""

ALL_REQUESTS: tuple[type[Request], ...] = tuple(CALLS)
OFFSET = OffsetToCommit("docs", 0, 5)
DOCS = [TopicPartitions("docs", (0,))]


class Scripted(Cable):
    """A way to the coordinator on which requests of one kind get another answer, or none."""

    def __init__(self, coordinator: LocalCoordinator) -> None:
        super().__init__(coordinator)
        self.script: list[ErrorCode | CoordinatorUnreachable] = []
        """The next answers to these requests; the last one goes on, unless it is to be given `once`."""
        self.kinds: tuple[type[Request], ...] = ()
        self.once = False

    async def send(self, request: Request, *, timeout_ms: int) -> Answer:
        if isinstance(request, self.kinds) and self.script:
            answer = self.script[0] if len(self.script) == 1 and not self.once else self.script.pop(0)
            if isinstance(answer, CoordinatorUnreachable):
                raise answer
            return Received(refuse(request, answer, "for the test"))
        return await super().send(request, timeout_ms=timeout_ms)


class Road(httpx.AsyncBaseTransport):
    """HTTP between the SDK and the cable, by the SDK's decoder and the server's encoder."""

    def __init__(self, cable: Cable) -> None:
        self._cable = cable

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            received = await self._cable.send(_decoded(request, Limits()), timeout_ms=25_000)
        except CoordinatorUnreachable as error:
            raise (httpx.ReadError if error.was_sent else httpx.ConnectError)(str(error)) from error
        return _response(render_answer(ports.Answer(received.reply, received.revision, received.epoch)))


def a_client(coordinator: LocalCoordinator, over: str) -> tuple[Client, Scripted]:
    cable = Scripted(coordinator)
    return Client(HttpTransport([ADDRESS], inner=Road(cable)) if over == "http" else cable), cable


OVER = pytest.mark.parametrize("over", ["memory", "http"])
CODES = pytest.mark.parametrize("code", CLASSES)

ADMIN: dict[str, Callable[[Client], Awaitable[object]]] = {
    "list_groups": lambda client: client.list_groups(),
    "describe_group": lambda client: client.describe_group("g"),
    "delete_group": lambda client: client.delete_group("g"),
    "rebalance_group": lambda client: client.rebalance_group("g"),
    "freeze_group": lambda client: client.freeze_group("g", 1_000),
    "quarantine_group": lambda client: client.quarantine_group("g", after_falls=3),
    "drain_member": lambda client: client.drain_member("g", "m"),
    "plan_group": lambda client: client.plan_group("g"),
    "remove_member": lambda client: client.remove_member("g", "m"),
    "offsets": lambda client: client.offsets("g"),
    "set_offsets": lambda client: client.set_offsets("g", [OFFSET]),
    "delete_offsets": lambda client: client.delete_offsets("g", {"docs": [0]}),
    "topics": lambda client: client.topics(),
    "topic": lambda client: client.topic("docs"),
    "put_topic": lambda client: client.put_topic("docs", 1),
    "delete_topic": lambda client: client.delete_topic("docs"),
}


def test_the_tables_name_every_code_and_every_call() -> None:
    calls = {name for name in dir(Client) if asyncio.iscoroutinefunction(getattr(Client, name)) and name[0] != "_"}

    assert set(ErrorCode) - {ErrorCode.NONE} == set(CLASSES)
    assert calls - {"start", "close"} == set(ADMIN)


@OVER
@in_virtual_time
async def test_each_administrative_call_raises_the_answers_class(over: str) -> None:
    async with a_coordinator() as coordinator:
        client, cable = a_client(coordinator, over)
        cable.kinds = ALL_REQUESTS
        for code, kind in CLASSES.items():
            cable.script = [code]
            for name, call in ADMIN.items():
                if (over, name) == ("http", "remove_member"):
                    continue  # The members' own encoder has no such call.
                with pytest.raises(sdk.CoordinatorError) as raised:
                    await call(client)
                assert (type(raised.value), raised.value.code) == (kind, code), name


@OVER
@pytest.mark.parametrize("was_sent", [True, False])
@in_virtual_time
async def test_each_administrative_call_without_an_answer_says_so(over: str, was_sent: bool) -> None:
    async with a_coordinator() as coordinator:
        client, cable = a_client(coordinator, over)
        cable.kinds = ALL_REQUESTS
        cable.script = [CoordinatorUnreachable("silence", was_sent=was_sent)]
        for name, call in ADMIN.items():
            if (over, name) == ("http", "remove_member"):
                continue
            with pytest.raises(CoordinatorUnreachable) as raised:
                await call(client)
            assert raised.value.was_sent is was_sent, name


READING: dict[str, tuple[type[Request], Callable[[Consumer], Awaitable[object]]]] = {
    "fetch_offsets": (FetchOffsets, lambda consumer: consumer.fetch_offsets(DOCS)),
    "committed": (FetchOffsets, lambda consumer: consumer.committed()),
    "verify_fence": (VerifyFence, lambda consumer: consumer.verify_fence()),
    "signed_token": (VerifyFence, lambda consumer: consumer.signed_token()),
}


@OVER
@pytest.mark.parametrize("name", READING)
@in_virtual_time
async def test_each_call_of_a_member_raises_the_answers_class(name: str, over: str) -> None:
    kind, call = READING[name]
    async with a_coordinator() as coordinator:
        client, cable = a_client(coordinator, over)
        async with client.consumer("g", {"docs": 1}, session_timeout=SESSION_S) as consumer:
            await consumer.wait_assigned()
            cable.kinds = (kind,)
            for code, expected in CLASSES.items():
                cable.script = [code]
                with pytest.raises(sdk.CoordinatorError) as raised:
                    await call(consumer)
                assert (type(raised.value), raised.value.code) == (expected, code)
            cable.script = [CoordinatorUnreachable("silence")]
            with pytest.raises(CoordinatorUnreachable):
                await call(consumer)
            cable.script = []


@in_virtual_time
async def test_a_position_is_asked_for_until_the_shard_is_lost() -> None:
    """An answer that may change is waited for, all others are raised."""
    async with a_coordinator() as coordinator:
        client, cable = a_client(coordinator, "memory")
        cable.kinds = (FetchOffsets,)
        found: list[object] = []

        async def work(shard: Shard) -> None:
            for code, expected in CLASSES.items():
                cable.script, cable.once = [code] * 200, True
                if issubclass(expected, sdk.Unavailable):
                    found.append(await shard.position())
                else:
                    with pytest.raises(expected) as raised:
                        await shard.position()
                    assert raised.value.code is code

        await client.worker_pool("g", {"docs": 1}, work).run(until_done=True, handle_signals=False)
        assert found == [0] * 5


Commit = Callable[[Consumer], Awaitable[object]]


async def _stored(consumer: Consumer) -> None:
    consumer.store("docs", 0, 5)
    await consumer.commit()


async def _soon(consumer: Consumer) -> None:
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    consumer.commit_soon([OFFSET], lambda _items, error: outcome.set_result(error))
    if (error := await outcome) is not None:
        raise error


async def _by_the_shard(consumer: Consumer) -> None:
    await Shard(consumer, TopicPartition("docs", 0)).commit(5)


COMMITS: dict[str, Commit] = {
    "commit": lambda consumer: consumer.commit([OFFSET]),
    "store and commit": _stored,
    "commit_soon": _soon,
    "shard.commit": _by_the_shard,
}


async def _outcome(call: Commit, over: str, strategy: str, *script: ErrorCode | CoordinatorUnreachable) -> object:
    """Class and code of the error of a commit that gets these answers, each once; None if it is made."""
    async with a_coordinator() as coordinator:
        client, cable = a_client(coordinator, over)
        consumer = client.consumer("g", {"docs": 1}, strategy, session_timeout=SESSION_S)
        await consumer.start()
        await consumer.wait_assigned()
        cable.kinds, cable.script, cable.once = (CommitOffsets,), list(script), True
        if ErrorCode.ILLEGAL_GENERATION in script:
            asyncio.get_running_loop().call_later(0.1, consumer.rejoin, "the group has moved on")
        try:
            await call(consumer)
        except sdk.CoordinatorError as error:
            return type(error), error.code
        finally:
            await asyncio.gather(consumer.close(), return_exceptions=True)
        return None


@OVER
@pytest.mark.parametrize("name", COMMITS)
@in_virtual_time
async def test_a_commits_error_is_the_coordinators_word(name: str, over: str) -> None:
    for code, expected in CLASSES.items():
        outcome = await _outcome(COMMITS[name], over, "range", code)
        assert outcome == (None if code in COMMITTED_LATER else (expected, code))


@pytest.mark.parametrize("name", COMMITS)
@in_virtual_time
async def test_a_cooperative_members_commit_survives_a_rebalance(name: str) -> None:
    outcome = await _outcome(COMMITS[name], "memory", "cooperative-sticky", ErrorCode.REBALANCE_IN_PROGRESS)

    assert outcome is None


@pytest.mark.parametrize("name", COMMITS)
@in_virtual_time
async def test_a_commit_is_in_doubt_only_without_an_answer(name: str) -> None:
    unsent, unanswered = CoordinatorUnreachable("", was_sent=False), CoordinatorUnreachable("")
    in_doubt = (CoordinatorUnreachable, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
        assert await _outcome(COMMITS[name], "memory", "range", unsent, code) == (CLASSES[code], code)
        assert await _outcome(COMMITS[name], "memory", "range", unanswered, code) == in_doubt
    assert await _outcome(COMMITS[name], "memory", "range", unanswered, unsent) is None


@pytest.mark.parametrize("kind", UnreachableKind)
@in_virtual_time
async def test_a_commit_without_an_answer_to_the_end_is_in_doubt(kind: UnreachableKind) -> None:
    async with a_coordinator() as coordinator:
        client, cable = a_client(coordinator, "memory")
        async with client.consumer("g", {"docs": 1}, session_timeout=SESSION_S) as consumer:
            await consumer.wait_assigned()
            cable.kinds, cable.script = ALL_REQUESTS, [CoordinatorUnreachable("", kind=kind)]
            with pytest.raises(CoordinatorUnreachable, match="it is not known whether this was committed"):
                await consumer.commit([OFFSET])
            with pytest.raises(sdk.MembershipLost):
                await consumer.commit([OFFSET])
            cable.script = []


@pytest.mark.parametrize("answer", [*CLASSES, CoordinatorUnreachable("")])
@in_virtual_time
async def test_no_answer_to_a_leave_is_an_error_of_the_program(answer: Any) -> None:
    async with a_coordinator() as coordinator:
        client, cable = a_client(coordinator, "memory")
        cable.kinds, cable.script = (LeaveGroup,), [answer]
        async with client.consumer("g", {"docs": 1}, session_timeout=SESSION_S) as consumer:
            await consumer.wait_assigned()
        async with client.leader("e", session_timeout=SESSION_S) as election:
            await until(lambda: election.is_leader)
            await election.resign()
