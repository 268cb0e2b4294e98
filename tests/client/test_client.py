"""The client without membership: groups, offsets, topics, watching; and what the package offers and costs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from types import FunctionType

import pytest

import rota
import rota.client
from rota.client import (
    CoordinatorError,
    CoordinatorUnreachable,
    GroupEvent,
    NotFound,
    OffsetToCommit,
    Throttled,
    Unavailable,
)
from rota.client.calls import Caller
from rota.client.errors import error_for
from rota.client.transports import Answer
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DescribeGroup, DescribeReply, Request
from rota.protocol.wire.replies import Received
from rota.protocol.wire.status import STATUS
from tests.client.stage import GROUP, Cable, a_coordinator, a_worker
from tests.client.virtual_time import in_virtual_time


@in_virtual_time
async def test_offsets_are_read_without_a_membership() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.member() as member:
            await member.wait_assigned()
            await member.commit([OffsetToCommit("work", number, 10 + number) for number in range(3)])
        assert [offset.offset for offset in await worker.client.offsets(GROUP)] == [10, 11, 12]


@in_virtual_time
async def test_lists_longer_than_a_page_are_read_to_their_end() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        for number in range(1_100):
            await client.put_topic(f"t-{number:04}", 1)
        assert [topic.topic for topic in await client.topics()] == [f"t-{number:04}" for number in range(1_100)]


@in_virtual_time
async def test_watching_goes_on_after_an_outage_without_a_gap() -> None:
    async with a_coordinator() as coordinator:
        watcher, worker = a_worker(coordinator), a_worker(coordinator)
        seen: list[GroupEvent] = []

        async def watch() -> None:
            async for event in watcher.client.watch(GROUP, after_revision=0):
                seen.append(event)
                if event.kind == "group_emptied":
                    return

        task = asyncio.create_task(watch())
        watcher.cable.pull()
        async with worker.member() as member:
            await member.wait_assigned()
            watcher.cable.plug_in()
        await task
        kinds = [event.kind for event in seen]
        assert kinds[0] == "member_joined"
        assert kinds.index("generation_completed") < kinds.index("assignment_synced") < kinds.index("group_emptied")


# --- patience and errors ----------------------------------------------------------------------


@dataclass
class Script(Cable):
    """A coordinator's answers, one after the other; None is silence."""

    answers: list[ErrorCode | None] = field(default_factory=list)

    def __init__(self, *answers: ErrorCode | None, retry_after_ms: int = 0) -> None:
        self.answers = list(answers)
        self.retry_after_ms = retry_after_ms
        self.requests = []

    async def send(self, request: Request, *, timeout_ms: int) -> Answer:
        self.requests.append(request)
        code = self.answers.pop(0)
        if code is None:
            raise CoordinatorUnreachable("silence")
        if code is ErrorCode.NONE:
            return Received(DescribeReply())
        return Received(refuse(request, code, "as scripted"), retry_after_ms=self.retry_after_ms)


DESCRIBE = DescribeGroup("default", "g")


@in_virtual_time
async def test_a_call_is_retried_while_the_coordinator_may_return() -> None:
    script = Script(None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.THROTTLED, ErrorCode.NONE)
    await Caller(script, jitter=lambda: 1.0).ask(DESCRIBE, DescribeReply)
    assert script.answers == []


@in_virtual_time
async def test_who_is_asked_for_patience_waits_for_as_long() -> None:
    script = Script(ErrorCode.THROTTLED, ErrorCode.NONE, retry_after_ms=7_000)
    started_at = asyncio.get_running_loop().time()
    await Caller(script, jitter=lambda: 0.0).ask(DESCRIBE, DescribeReply)
    assert asyncio.get_running_loop().time() - started_at == 7


@in_virtual_time
async def test_a_timeout_without_time_left_is_reported_to_the_program() -> None:
    script = Script(ErrorCode.THROTTLED, retry_after_ms=60_000)
    with pytest.raises(Throttled) as reported:
        await Caller(script).ask(DESCRIBE, DescribeReply)
    assert reported.value.retry_after == 60


@in_virtual_time
async def test_a_call_that_cannot_succeed_is_not_repeated() -> None:
    script = Script(ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NONE)
    with pytest.raises(NotFound, match="as scripted"):
        await Caller(script).ask(DESCRIBE, DescribeReply)
    assert script.answers == [ErrorCode.NONE]


@in_virtual_time
async def test_patience_ends() -> None:
    script = Script(*[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 50)
    started_at = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable):
        await Caller(script, retry_timeout=3.0, jitter=lambda: 1.0).ask(DESCRIBE, DescribeReply)
    assert asyncio.get_running_loop().time() - started_at < 3


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
def test_an_error_has_its_code_and_names_one_that_its_class_does_not_say(code: ErrorCode) -> None:
    error = error_for(code, "why")
    text = "why" if code is type(error).code else f"why ({code})"
    assert (error.code, str(error), error.detail, error.retriable) == (code, text, "why", STATUS[code].retriable)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    def tree(kind: type[CoordinatorError]) -> list[str]:
        return [kind.__name__, *(name for child in kind.__subclasses__() for name in tree(child))]

    drawn = (CoordinatorError.__doc__ or "").split("\n\n", 2)[2]
    assert [line.strip("│├└─ ").split()[0] for line in drawn.split("\n") if line.strip()] == tree(CoordinatorError)


# --- the package ------------------------------------------------------------------------------


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="conect"):
        rota.conect  # noqa: B018


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "http://", ""])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="no http"):
        rota.connect(url)


@pytest.mark.parametrize("place", ["group_id", "group_instance_id"])
def test_an_unacceptable_name_is_rejected_before_a_call(place: str) -> None:
    client = rota.connect("http://127.0.0.1:9")
    names = {"group_id": "g", place: "a b"}
    with pytest.raises(CoordinatorError, match=f"{place} must be"):
        client.consumer(names.pop("group_id"), "t", **names)  # type: ignore[arg-type]


def test_everything_that_is_exported_is_there_and_documented() -> None:
    assert rota.client.__all__ == sorted(rota.client.__all__)
    offered = [getattr(rota.client, name) for name in rota.client.__all__]
    assert [thing for thing in offered if isinstance(thing, type | FunctionType) and not thing.__doc__] == []


def test_importing_the_sdk_brings_nothing_of_the_server() -> None:
    script = """
import sys, rota
assert "rota.client" not in sys.modules and "httpx" not in sys.modules
rota.connect
servers = ("fastapi", "starlette", "sqlalchemy", "redis", "uvicorn", "pydantic", "prometheus_client")
ours = ("rota.server.runtime", "rota.api", "rota.core.group", "rota.storage", "rota.server")
print(*(name for name in sys.modules if name.startswith((*servers, *ours))))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
