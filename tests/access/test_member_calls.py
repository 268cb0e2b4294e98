"""The guard before member calls: the same answers as those of the router, and permissions end at the same time."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio
from httptools import HttpRequestParser

from rota.core.access.sources import Proxies, parse_networks
from rota.server.http.member_calls import Sender
from rota.server.proxies import TrustedProxies
from tests.access.guarded import GROUP, NAMESPACE, Secrets, Service, a_guarded_service, a_join_body, bearer
from tests.access.issuers import service_account
from tests.http.both_ways import PLAIN, Both, a_request, compare, listening, turns

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUOTAS = """
[[quotas]]
namespace = "narrow"
requests_per_s = 5

[[quotas]]
namespace = "few"
max_parked = 1
"""
PATH = f"/v1/namespaces/{NAMESPACE}/groups/{GROUP}/heartbeat"


@dataclass
class Guarded:
    """A service behind its guard, whose connections answer member calls, and do not, and a member of a group."""

    service: Service
    both: Both
    tokens: dict[str, str]
    member_id: str

    def heartbeat(self, *headers: str, member_id: str = "", path: str = PATH) -> bytes:
        body = {"member_id": member_id or self.member_id, "generation_id": 1}
        return a_request(json.dumps(body).encode(), *PLAIN, *headers, path=path)

    def batch(self, *headers: str) -> bytes:
        beats = [{"member_id": member_id, "generation_id": 1} for member_id in (self.member_id, "nobody")]
        return a_request(json.dumps({"members": beats}).encode(), *PLAIN, *headers, path=PATH)

    def as_(self, name: str) -> str:
        return f"Authorization: Bearer {self.tokens[name]}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    secrets = Secrets(tmp_path_factory.mktemp("secrets"))
    tokens = {name: secrets.a_token(name) for name in ("member", "another", "revoked", "later")}
    tokens["viewer"] = secrets.a_token("viewer", "viewer")
    tokens["operator"] = secrets.a_token("operator", "operator")
    tokens["stranger"] = secrets.a_token("stranger", namespace="team-b")
    tokens["expired"] = secrets.a_token("expired", expires_at_ms=1)
    tokens["jwt"] = secrets.oidc.token(sub="worker")
    tokens["unknown"] = tokens["member"][:-1] + "x"
    tokens["garbage"] = "garbage"
    secrets.revoke("revoked")
    async with a_guarded_service(secrets, QUOTAS) as service:
        api = service.api
        async with listening(api, fast=True) as fast, listening(api, fast=False) as plain:
            member_id = await a_member(service.http, tokens["member"])
            guarded = Guarded(service, Both(api.metrics, fast, plain), tokens, member_id)
            for name in tokens:  # each caller is known, or known to be none
                await plain.exchange(guarded.heartbeat(guarded.as_(name)))
            yield guarded


@pytest.fixture(autouse=True)
def counted_anew(guarded: Guarded) -> None:
    guarded.both.fast.ordinary = guarded.both.plain.ordinary = 0


async def a_member(http: httpx.AsyncClient, token: str, namespace: str = NAMESPACE, group_id: str = GROUP) -> str:
    """Of a group that is Stable."""
    group = f"/v1/namespaces/{namespace}/groups/{group_id}"
    join, headers = a_join_body(), bearer(token)
    join["member_id"] = (await http.post(f"{group}/join", json=join, headers=headers)).json()["member_id"]
    assert (await http.post(f"{group}/join", json={**join, "wait_ms": 9_000}, headers=headers)).status_code == 200
    sync = {"member_id": join["member_id"], "generation_id": 1, "assignments": []}
    assert (await http.post(f"{group}/sync", json=sync, headers=headers)).status_code == 200
    return str(join["member_id"])


_BY_REVISION = re.compile(rb'(content-length: |"revision":)[0-9]+')
FAST = {"member": 200, "another": 403, "operator": 200, "jwt": 403}
"""Callers that are admitted, and the answers of the group's owner."""
ORDINARY = {
    "viewer": 403,
    "stranger": 403,
    "revoked": 401,
    "expired": 401,
    "unknown": 401,
    "garbage": 401,
}


@pytest.mark.parametrize("name", [*FAST, *ORDINARY])
async def test_each_caller_gets_the_same_answer_both_ways(name: str, guarded: Guarded) -> None:
    """Twice on one connection: the second time the request is remembered, where it was answered fast."""
    request = guarded.heartbeat(guarded.as_(name))

    answer, fast = await compare(guarded.both, request, request)

    assert answer.startswith(b"HTTP/1.1 %d" % (FAST | ORDINARY)[name])
    assert fast == (2 if name in FAST else 0)


@pytest.fixture
def elsewhere(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """No heartbeat has its answer at hand, as where another replica owns the group."""
    monkeypatch.setattr(guarded.service.coordinator, "try_heartbeat", lambda _: None)


@pytest.mark.parametrize("is_standalone", [False, True])
@pytest.mark.parametrize("name", [*FAST, *ORDINARY])
async def test_each_caller_commits_or_not_both_ways(name: str, is_standalone: bool, guarded: Guarded) -> None:
    """As the member, and as an administrator, which a group with members rejects."""
    offsets = [{"topic": "t", "partition": 0, "offset": 5}]
    member = {} if is_standalone else {"member_id": guarded.member_id, "generation_id": 1}
    body = json.dumps({**member, "offsets": offsets}).encode()
    request = a_request(body, *PLAIN, guarded.as_(name), path=PATH.replace("heartbeat", "offsets"))

    both = guarded.both
    plain, fast = [await listener.exchange(request, request) for listener in (both.plain, both.fast)]

    is_rejected = is_standalone and name in FAST
    status = {"operator": 404}.get(name, 403) if is_rejected else (FAST | ORDINARY)[name]
    assert plain.startswith(b"HTTP/1.1 %d" % status)
    # Each commit that lands has a revision of its own.
    assert _BY_REVISION.sub(b"", plain) == _BY_REVISION.sub(b"", fast)
    assert both.plain.ordinary - both.fast.ordinary == (2 if name in FAST else 0)


@dataclass
class Parked:
    """A call that waits on a connection of its own, which answers it itself."""

    guarded: Guarded
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def begin(cls, guarded: Guarded, request: bytes) -> Parked:
        before = guarded.service.coordinator.parked()
        reader, writer = await asyncio.open_connection("127.0.0.1", guarded.both.fast.port)
        writer.write(request)
        await until(lambda: guarded.service.coordinator.parked() == before + 1)
        assert guarded.both.fast.ordinary == 0
        return cls(guarded, reader, writer)

    async def answer(self) -> bytes:
        async with asyncio.timeout(10):
            head = await self.reader.readuntil(b"\r\n\r\n")
        self.writer.close()
        return head


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await turns(1)


def a_wait(member_id: str, group_id: str, token: str) -> bytes:
    body = json.dumps({"member_id": member_id, "generation_id": 1, "wait_ms": 20_000}).encode()
    path = PATH.replace(GROUP, group_id)
    return a_request(body, *PLAIN, f"Authorization: Bearer {token}", path=path)


@pytest.mark.parametrize("end", ["token", "rules"])
async def test_a_parked_call_ends_with_its_proof(end: str, guarded: Guarded) -> None:
    secrets, name = guarded.service.secrets, f"parks-{end}"
    tokens = {"token": secrets.a_token(name), "rules": secrets.oidc.token(sub="worker", jti=name)}
    member_id = await a_member(guarded.service.http, tokens[end], group_id=name)
    rules, open_before = secrets.access_file.read_text(), len(guarded.service.guard.open_work)
    waiting = await Parked.begin(guarded, a_wait(member_id, name, tokens[end]))

    if end == "token":
        secrets.revoke(name)
    else:
        secrets.access_file.write_text(rules.replace('"user:worker", ', ""))
    try:
        answer = await waiting.answer()
    finally:
        secrets.access_file.write_text(rules)

    assert answer.startswith(b"HTTP/1.1 401" if end == "token" else b"HTTP/1.1 403")
    assert len(guarded.service.guard.open_work) == open_before
    assert guarded.service.coordinator.parked() == 0


@pytest.mark.parametrize("name", ["holder", "operator"])
async def test_a_parked_call_is_held_until_its_client_is_gone(name: str, guarded: Guarded) -> None:
    """Also that of an administrator, which the owner is asked again for."""
    service, group = guarded.service, f"held-{name}"
    tokens = {"holder": service.secrets.a_token(f"of {group}"), "operator": guarded.tokens["operator"]}
    member_id = await a_member(service.http, tokens["holder"], group_id=group)
    open_before = len(service.guard.open_work)
    waiting = await Parked.begin(guarded, a_wait(member_id, group, tokens[name]))
    open_meanwhile = len(service.guard.open_work)

    waiting.writer.transport.abort()
    await until(lambda: service.coordinator.parked() == 0)

    assert (open_meanwhile, len(service.guard.open_work)) == (open_before + 1, open_before)


async def test_a_caller_that_is_not_known_yet_is_verified_first(guarded: Guarded) -> None:
    token = guarded.service.secrets.oidc.token(sub="worker", jti="2")
    request = guarded.heartbeat(f"Authorization: Bearer {token}")

    answer = await guarded.both.fast.exchange(request, request, request)

    assert answer.count(b"HTTP/1.1 403") == 3
    assert guarded.both.fast.ordinary == 2  # the first one, and the one that ends the exchange


async def test_two_callers_of_one_connection_are_distinguished(guarded: Guarded) -> None:
    """As those behind a proxy, which repeats requests of both on one connection."""
    mine, anothers = guarded.heartbeat(guarded.as_("member")), guarded.heartbeat(guarded.as_("another"))

    answer, fast = await compare(guarded.both, mine, anothers, mine, anothers, mine)

    statuses = re.findall(rb"HTTP/1.1 (\d+)", answer)
    assert statuses[:5] == [b"200", b"403", b"200", b"403", b"200"]
    assert fast == 5


@pytest.mark.parametrize("end", ["token", "rules", "pods"])
async def test_what_is_revoked_ends_on_a_connection_that_is_open(end: str, guarded: Guarded) -> None:
    secrets, both = guarded.service.secrets, guarded.both
    name = f"ends-{end}"
    tokens = {"token": secrets.a_token(name), "rules": secrets.oidc.token(sub="worker", jti="3")}
    token = tokens.get(end) or secrets.cluster.token(**service_account("team-a", "worker"))
    member_id = await a_member(guarded.service.http, token, group_id=name)
    path = PATH.replace(GROUP, name)
    request = guarded.heartbeat(f"Authorization: Bearer {token}", member_id=member_id, path=path)
    reader, writer = await asyncio.open_connection("127.0.0.1", both.fast.port)

    before = [await ask(request, reader, writer) for _ in range(3)]
    rules = secrets.access_file.read_text()
    if end == "token":
        secrets.revoke(name)
    elif end == "rules":
        secrets.access_file.write_text(rules.replace('"user:worker", ', ""))
    else:
        secrets.access_file.write_text(f"bind_members_to_pods = true\nrequire_pods = true\n{rules}")
    try:
        async with asyncio.timeout(3):
            while (after := await ask(request, reader, writer)).startswith(b"HTTP/1.1 200"):
                pass
    finally:
        secrets.access_file.write_text(rules)
        writer.close()

    assert {head[:12] for head in before} == {b"HTTP/1.1 200"}
    assert after.startswith(b"HTTP/1.1 401" if end == "token" else b"HTTP/1.1 403")


@pytest.mark.parametrize("is_elsewhere", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
async def test_quotas_hold_on_the_connection(
    is_batch: bool, is_elsewhere: bool, guarded: Guarded, request: pytest.FixtureRequest
) -> None:
    """Heartbeats of a member that come too soon cost what any request costs; those at its pace are free."""
    group = f"{'batches' if is_batch else 'singles'}-{is_elsewhere}"
    token = guarded.service.secrets.a_token(group, "operator", "narrow")
    member_id = await a_member(guarded.service.http, token, "narrow", group)
    beat = a_heartbeat(member_id, token, f"/v1/namespaces/narrow/groups/{group}/heartbeat", is_batch=is_batch)
    if is_elsewhere:
        request.getfixturevalue("elsewhere")

    answer = await guarded.both.fast.exchange(*[beat] * 60)

    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b'"THROTTLED"') == 60 - answer.count(b'"error":"NONE"' if is_batch else b'"state"') > 20
    assert guarded.both.fast.ordinary == 1


def a_heartbeat(member_id: str, token: str, path: str, *, is_batch: bool = False) -> bytes:
    beat = {"member_id": member_id, "generation_id": 1}
    body = {"members": [beat]} if is_batch else beat
    return a_request(json.dumps(body).encode(), *PLAIN, f"Authorization: Bearer {token}", path=path)


async def ask(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The head of the answer to one request of a connection."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return head


@pytest.mark.parametrize("trusted", ["", "127.0.0.0/8", "127.0.0.1, 10.0.0.0/8"])
@pytest.mark.parametrize("hops", ["", "192.0.2.7", "192.0.2.7, 10.1.1.1", "x"])
async def test_the_clients_address_is_that_of_the_router(trusted: str, hops: str, guarded: Guarded) -> None:
    proxies, calls = Proxies(parse_networks(trusted)), guarded.both.fast.api.member_calls
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"9")]
    headers += [(b"x-forwarded-for", hops.encode())] if hops else []
    parser = HttpRequestParser(object())
    parser.feed_data(guarded.heartbeat())

    calls.proxies, former = proxies, calls.proxies
    sender = Sender(calls, "127.0.0.1", None)
    is_plain = sender.plan(parser, PATH.encode(), headers)
    calls.proxies = former

    reported = TrustedProxies(guarded.service.api, proxies)._changes("127.0.0.1", headers) if trusted else {}
    assert is_plain
    assert sender._origin == reported.get("client", ("127.0.0.1", 0))[0]


async def test_a_certificate_is_its_connections_caller(guarded: Guarded) -> None:
    certificate = guarded.service.secrets.authority.issue("worker", uri="spiffe://corp/ns/team-a/w")
    other = guarded.service.secrets.authority.issue("other", uri="spiffe://corp/ns/team-b/w")
    answered = []
    for each in (certificate, other):
        async with guarded.service.as_certificate(each) as (http, _):
            beat = {"member_id": "m", "generation_id": 1}
            answered += [(await http.post(PATH, json=beat)).json()["code"] for _ in range(3)]

    assert answered == ["UNKNOWN_MEMBER_ID"] * 3 + ["GROUP_AUTHORIZATION_FAILED"] * 3
