"""Open work ends within 3 s of its caller's proof or rule, each kind with the error that a new call gets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio
from cryptography import x509

from rota.v1 import admin_pb2
from rota.v1 import coordinator_pb2 as pb
from tests.access.guarded import NAMESPACE, Secrets, Service, a_guarded_service, bearer
from tests.grpc.clients import Channel, SessionClient, a_join, admin, refused, stub

pytestmark = pytest.mark.asyncio(loop_scope="module")
WITHIN_S = 10.0
"""The promise is 3 s, which a quiet machine keeps by far; two cores that run three test processes may not."""
WAIT_MS = 20_000
LEEWAY_S = 30
BRIEF_S = 9.0
"""How long a proof is good: work of each kind has to be open by then, also where the machine stalls for seconds."""
Work = Callable[["Caller", str], Awaitable["asyncio.Task[str]"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    secrets = Secrets(tmp_path_factory.mktemp("secrets"))
    secrets.a_token("owner", "operator")
    async with a_guarded_service(secrets) as service:
        yield service


@dataclass
class Caller:
    """A caller of both transports, and the owner of the groups beside it."""

    http: httpx.AsyncClient
    channel: Channel
    headers: dict[str, str]
    owner: tuple[Channel, dict[str, str]]

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.headers.items())

    async def post(self, group_id: str, call: str, **body: Any) -> str:
        answer = await self.http.post(path(group_id, call), json=body, headers=self.headers, timeout=60)
        document = answer.json()
        return str(document["members"][0]["error"] if "members" in document else document.get("code", "NONE"))

    async def get(self, where: str) -> str:
        answer = await self.http.get(where, headers=self.headers, timeout=60)
        return str(answer.json().get("code", "NONE"))

    async def is_member(self, group_id: str) -> tuple[str, int]:
        """Join alone and lead a Stable group."""
        joined = await stub(self.channel).JoinGroup(of(group_id, "own"), metadata=self.metadata)
        await self._assign(stub(self.channel), joined, group_id, self.metadata)
        return joined.member_id, joined.generation_id

    async def beside_a_member(self, group_id: str) -> None:
        """The owner leads a Stable group."""
        service, metadata = stub(self.owner[0]), tuple(self.owner[1].items())
        joined = await service.JoinGroup(of(group_id, "owners"), metadata=metadata)
        await self._assign(service, joined, group_id, metadata)

    async def follows(self, group_id: str) -> pb.JoinGroupResponse:
        """Be a follower in a generation in which the leader, the owner, has not synced."""
        await self.beside_a_member(group_id)
        mine = asyncio.ensure_future(stub(self.channel).JoinGroup(of(group_id, "own"), metadata=self.metadata))
        metadata = tuple(self.owner[1].items())
        await stub(self.owner[0]).JoinGroup(of(group_id, "owners"), metadata=metadata)
        return await mine  # type: ignore[no-any-return]

    async def _assign(self, service: Any, joined: Any, group_id: str, metadata: Any) -> None:
        shares = [pb.MemberAssignment(member_id=joined.member_id, assignment=b"all")]
        sync = pb.SyncGroupRequest(
            **place(group_id), member_id=joined.member_id, generation_id=joined.generation_id, assignments=shares
        )
        await service.SyncGroup(sync, metadata=metadata)


def place(group_id: str) -> dict[str, Any]:
    return {"namespace": NAMESPACE, "group_id": group_id}


def path(group_id: str, call: str = "") -> str:
    return f"/v1/namespaces/{NAMESPACE}/groups/{group_id}" + (f"/{call}" if call else "")


def of(group_id: str, instance: str) -> pb.JoinGroupRequest:
    return a_join(instance, **place(group_id), session_timeout_ms=1_800_000)


async def code_of(call: Any) -> str:
    return str((await refused(call)).code)


# --- kinds of work: each returns, once it is open, the task whose result is the code that it ended with --------


async def joins(caller: Caller, group_id: str) -> asyncio.Task[str]:
    await caller.beside_a_member(group_id)
    body = {
        "protocol_type": "worker",
        "protocols": [{"name": "range", "metadata": ""}],
        "session_timeout_ms": 1_800_000,
        "group_instance_id": "own",
        "wait_ms": WAIT_MS,
    }
    return asyncio.create_task(caller.post(group_id, "join", **body))


async def syncs(caller: Caller, group_id: str) -> asyncio.Task[str]:
    joined = await caller.follows(group_id)
    sync = pb.SyncGroupRequest(
        **place(group_id), member_id=joined.member_id, generation_id=joined.generation_id, wait_ms=WAIT_MS
    )
    return asyncio.create_task(code_of(stub(caller.channel).SyncGroup(sync, metadata=caller.metadata)))


async def heartbeats(caller: Caller, group_id: str) -> asyncio.Task[str]:
    member_id, generation_id = await caller.is_member(group_id)
    beat = {"member_id": member_id, "generation_id": generation_id, "wait_ms": WAIT_MS}
    return asyncio.create_task(caller.post(group_id, "heartbeat", **beat))


async def heartbeats_together(caller: Caller, group_id: str) -> asyncio.Task[str]:
    member_id, generation_id = await caller.is_member(group_id)
    members = [{"member_id": member_id, "generation_id": generation_id}]
    return asyncio.create_task(caller.post(group_id, "heartbeat", members=members, wait_ms=WAIT_MS))


async def heartbeats_by_rpc(caller: Caller, group_id: str) -> asyncio.Task[str]:
    member_id, generation_id = await caller.is_member(group_id)
    beat = pb.HeartbeatRequest(**place(group_id), member_id=member_id, generation_id=generation_id, wait_ms=WAIT_MS)
    return asyncio.create_task(code_of(stub(caller.channel).Heartbeat(beat, metadata=caller.metadata)))


async def asks_for_the_leader(caller: Caller, group_id: str) -> asyncio.Task[str]:
    await caller.beside_a_member(group_id)
    return asyncio.create_task(caller.get(path(group_id, f"leader?wait_ms={WAIT_MS}&after_generation=9")))


async def asks_for_a_topic(caller: Caller, group_id: str) -> asyncio.Task[str]:
    return asyncio.create_task(caller.get(f"/v1/namespaces/{NAMESPACE}/topics/{group_id}?wait_ms={WAIT_MS}"))


async def watches(caller: Caller, group_id: str) -> asyncio.Task[str]:
    is_open = asyncio.Event()

    async def watch() -> str:
        last = ""
        async with caller.http.stream("GET", path(group_id, "events"), headers=caller.headers) as response:
            async for line in response.aiter_lines():
                is_open.set()
                last = line.removeprefix("data: ") if line.startswith("data: ") else last
        return str(json.loads(last)["code"])

    await caller.beside_a_member(group_id)
    task = asyncio.create_task(watch())
    await is_open.wait()
    return task


async def watches_by_rpc(caller: Caller, group_id: str) -> asyncio.Task[str]:
    asked = admin_pb2.WatchGroupRequest(**place(group_id))
    call = admin(caller.channel).WatchGroup(asked, metadata=caller.metadata)
    await call.initial_metadata()

    async def read() -> None:
        try:
            async for _ in call:
                continue
        finally:
            call.cancel()

    return asyncio.create_task(code_of(read()))


async def is_on_a_stream(caller: Caller, group_id: str) -> asyncio.Task[str]:
    """With a join that is parked on it: otherwise a stream ends in order shortly before its proof expires."""
    await caller.beside_a_member(group_id)
    client = SessionClient(caller.channel, caller.metadata)
    call = await client.send(join=of(group_id, "own"))

    async def end() -> str:
        try:
            await client.until_ended()
        finally:
            await client.close()
        assert call not in client.answers or client.answers[call].HasField("error")
        return await code_of(client.stream.read())

    return asyncio.create_task(end())


KINDS: list[Work] = [
    joins,
    syncs,
    heartbeats,
    heartbeats_together,
    heartbeats_by_rpc,
    asks_for_the_leader,
    asks_for_a_topic,
    watches,
    watches_by_rpc,
    is_on_a_stream,
]

# --- kinds of endings: each gives the caller, and what ends its proof or its rule ------------------------------


@dataclass
class Ending:
    """`end` returns the moment from which a new call is rejected."""

    headers: dict[str, str]
    end: Callable[[], Awaitable[float]]
    code: str = "UNAUTHENTICATED"
    certificate: Any = None


def at_once(change: Callable[[], None]) -> Callable[[], Awaitable[float]]:
    async def end() -> float:
        change()
        return time.time()

    return end


def by_itself(at: float) -> Callable[[], Awaitable[float]]:
    async def end() -> float:
        return at

    return end


def revoked(service: Service) -> Ending:
    secrets = service.secrets
    return Ending(bearer(secrets.a_token("revoked")), at_once(lambda: secrets.revoke("revoked")))


def forgotten(service: Service) -> Ending:
    secrets = service.secrets
    headers = bearer(secrets.a_token("forgotten"))

    def forget() -> None:
        secrets.records.pop()
        secrets.a_token("another")

    return Ending(headers, at_once(forget))


def expired(service: Service) -> Ending:
    at = time.time() + BRIEF_S
    return Ending(bearer(service.secrets.a_token("expired", expires_at_ms=int(at * 1000))), by_itself(at))


def jwt_expired(service: Service) -> Ending:
    at = int(time.time() + BRIEF_S)
    token = service.secrets.oidc.token(sub="worker", exp=at - LEEWAY_S)
    return Ending(bearer(token), by_itself(at))


def certificate_expired(service: Service) -> Ending:
    authority = service.secrets.authority
    authority.good_for = timedelta(seconds=BRIEF_S)
    certificate = authority.issue("brief", uri=f"spiffe://corp/ns/{NAMESPACE}/brief")
    authority.good_for = timedelta(days=1)
    ends = x509.load_pem_x509_certificate(certificate.cert.read_bytes()).not_valid_after_utc
    return Ending({}, by_itself(ends.timestamp()), certificate=certificate)


def denied(service: Service) -> Ending:
    rule = """
[[rules]]
name = "not any more"
subjects = ["token:denied"]
actions = ["member"]
effect = "deny"
"""
    headers = bearer(service.secrets.a_token("denied"))
    return Ending(headers, at_once(lambda: service.secrets.write(more=rule)), "GROUP_AUTHORIZATION_FAILED")


def issuer_removed(service: Service) -> Ending:
    def remove() -> None:
        file = service.secrets.access_file
        file.write_text(
            file.read_text().replace('issuer = "https://login.example"', 'issuer = "https://other.example"')
        )

    return Ending(bearer(service.secrets.oidc.token(sub="worker")), at_once(remove))


def issuer_renamed(service: Service) -> Ending:
    """From now on the token is another caller's."""

    def rename() -> None:
        file = service.secrets.access_file
        named = 'issuer = "https://login.example"'
        file.write_text(file.read_text().replace(named, f'{named}\nprefix = "corp"'))

    return Ending(bearer(service.secrets.oidc.token(sub="worker")), at_once(rename))


THOROUGH = [forgotten, expired, certificate_expired, issuer_removed, issuer_renamed]
ENDINGS = [revoked, jwt_expired, denied, *(pytest.param(each, marks=pytest.mark.slow) for each in THOROUGH)]


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ENDINGS)
async def test_each_kind_of_open_work_ends_with_its_proof(
    service: Service, ending: Callable[[Service], Ending]
) -> None:
    service.secrets.write()
    owner = (service.channel, bearer(owners_token(service)))
    bystander = Caller(service.http, service.channel, bearer(service.secrets.a_token("bystander")), owner)
    beside = await all_kinds(service, bystander, f"beside-{ending.__name__}")
    async with AsyncExitStack() as stack:
        stack.callback(lambda: [task.cancel() for task in beside.values()])
        now = ending(service)
        http, channel = service.http, service.channel
        if now.certificate is not None:
            http, channel = await stack.enter_async_context(service.as_certificate(now.certificate))
        caller = Caller(http, channel, now.headers, owner)
        tasks = await all_kinds(service, caller, ending.__name__)
        ended_at = await now.end()

        async with asyncio.timeout(30):
            ended = await asyncio.gather(*(with_time(task) for task in tasks.values()))

        assert not [name for name, task in beside.items() if task.done()]
    await until_open(service, 0)
    assert {name: code for name, (code, _) in zip(tasks, ended, strict=True)} == dict.fromkeys(tasks, now.code)
    assert max(at - ended_at for _, at in ended) < WITHIN_S


async def all_kinds(service: Service, caller: Caller, name: str) -> dict[str, asyncio.Task[str]]:
    """All kinds of work, open at the same time. A stream with a call on it is two."""
    open_before = len(service.guard.open_work)
    tasks = await asyncio.gather(*(kind(caller, f"{name}-{kind.__name__}") for kind in KINDS))
    await until_open(service, open_before + len(KINDS) + 1)
    return dict(zip((kind.__name__ for kind in KINDS), tasks, strict=True))


async def until_open(service: Service, count: int) -> None:
    async with asyncio.timeout(10):
        while len(service.guard.open_work) != count:
            await service.http.get("/healthz")


async def with_time(task: asyncio.Task[str]) -> tuple[str, float]:
    return await task, time.time()


def owners_token(service: Service) -> str:
    return service.secrets.a_token("owner", "operator")
