"""Every route and rpc × every kind of caller: which are admitted. A route or rpc without its row fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from msgspec import structs

from rota.core.access.rules import ROLES
from rota.protocol import messages as m
from rota.protocol.calls import ADMIN, CALLS, COORDINATOR, MEMBER_PATH, NAMESPACE_PATH, Action
from rota.protocol.wire.routes import encode_request
from rota.protocol.wire.rpcs import REMOVE_MEMBERS, RPCS
from rota.server.grpc.calls import ACCESS
from rota.server.http.probes import PROBES, ProbesOnly
from rota.v1 import access_pb2, admin_pb2, coordinator_pb2
from rota.v1 import coordinator_pb2 as pb
from tests.access.guarded import GROUP, NAMESPACE, TOPIC, Secrets, Service, a_guarded_service, bearer, in_the_past_ms
from tests.access.issuers import service_account
from tests.grpc.clients import SessionClient
from tests.http.routes import routes_of
from tests.support.examples import EXAMPLES
from tests.support.peers import STATUS_LOST

_GROUP = NAMESPACE_PATH + "/groups/{group_id}"
PROTO = Path(__file__).parents[2] / "proto" / "rota" / "v1"
MODULES = (coordinator_pb2, admin_pb2, access_pb2)
OPEN = None
"""Any caller may: it shows nothing of any group, and probes, browsers and checkers of tokens need it."""

WHOEVER = "whoever"
"""Any caller may, unless its credentials are invalid: the answer is about the caller's own identity."""

OF_ROUTES: dict[tuple[str, str], str | None] = {
    **{(call.method, call.path): call.need.action for call in CALLS.values() if call.path},
    # Those that are no request of the protocol.
    ("DELETE", _GROUP + "/members/{member_id:path}"): Action.ADMINISTER,
    ("GET", _GROUP + "/coordinator"): Action.DESCRIBE,
    ("GET", _GROUP + "/events"): Action.DESCRIBE,
    ("GET", "/v1/events"): Action.JOURNAL,
    ("GET", "/metrics"): Action.METRICS,
    ("GET", "/v1/whoami"): WHOEVER,
    ("GET", "/v1/can-i"): WHOEVER,
    ("GET", "/v1/namespaces"): WHOEVER,
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/.well-known/jwks.json"): OPEN,
    ("GET", "/openapi.json"): OPEN,
}
OF_RPCS: dict[str, str | None] = {
    **{f"/{call.service}/{call.request.__name__}": call.need.action for call in CALLS.values() if call.service},
    f"/{COORDINATOR}/HeartbeatMany": Action.JOIN,
    f"/{COORDINATOR}/FindCoordinator": Action.DESCRIBE,
    f"/{COORDINATOR}/Session": Action.JOIN,
    f"/{ADMIN}/RemoveMembers": Action.ADMINISTER,
    f"/{ADMIN}/WatchGroup": Action.DESCRIBE,
    f"/{ACCESS}/WhoAmI": WHOEVER,
    f"/{ACCESS}/CanI": WHOEVER,
    "/grpc.health.v1.Health/Check": OPEN,
}

MEMBER, EVERYTHING, NOTHING = ROLES["member"], ROLES["admin"], frozenset[Action]()


@dataclass(frozen=True)
class Caller:
    """The rights of a kind of caller in the namespace, and whether it has proven its identity, or tried to at all."""

    may: frozenset[Action]
    is_proven: bool = True
    is_silent: bool = False

    def expected(self, action: str | None) -> str:
        if action is OPEN or action in self.may:
            return "in"
        if action == WHOEVER and (self.is_proven or self.is_silent):
            return "in"
        return "forbidden" if self.is_proven else "unauthenticated"


CALLERS = {
    "anonymous": Caller(NOTHING, is_proven=False, is_silent=True),
    "no bearer": Caller(NOTHING, is_proven=False),
    "two headers": Caller(NOTHING, is_proven=False),
    "garbage": Caller(NOTHING, is_proven=False),
    "unknown token": Caller(NOTHING, is_proven=False),
    "mistyped token": Caller(NOTHING, is_proven=False),
    "expired token": Caller(NOTHING, is_proven=False),
    "revoked token": Caller(NOTHING, is_proven=False),
    "token of another namespace": Caller(NOTHING),
    "token of a viewer": Caller(ROLES["viewer"]),
    "token of a member": Caller(MEMBER),
    "token of an operator": Caller(ROLES["operator"]),
    "token of an administrator": Caller(EVERYTHING),
    "jwt": Caller(MEMBER),
    "jwt of an administrator": Caller(EVERYTHING),
    "jwt without rules": Caller(NOTHING),
    "expired jwt": Caller(NOTHING, is_proven=False),
    "jwt for another audience": Caller(NOTHING, is_proven=False),
    "jwt of a stranger": Caller(NOTHING, is_proven=False),
    "jwt with another's key": Caller(NOTHING, is_proven=False),
    "unsigned jwt": Caller(NOTHING, is_proven=False),
    "service account": Caller(MEMBER),
    "service account of another team": Caller(NOTHING),
    "reviewed service account": Caller(MEMBER),
    "service account that the review refuses": Caller(NOTHING, is_proven=False),
}


def headers_of(secrets: Secrets) -> dict[str, list[tuple[str, str]]]:
    """How each kind of caller shows its identity."""
    tokens = {
        "expired token": secrets.a_token("old", "admin", expires_at_ms=in_the_past_ms()),
        "revoked token": secrets.a_token("gone", "admin", revoked_at_ms=1),
        "token of another namespace": secrets.a_token("other", "operator", "team-b"),
        "token of a viewer": secrets.a_token("viewer", "viewer"),
        "token of a member": secrets.a_token("member", "member"),
        "token of an operator": secrets.a_token("operator", "operator"),
        "token of an administrator": secrets.a_token("admin", "admin", "*"),
        "jwt": secrets.oidc.token(sub="worker"),
        "jwt of an administrator": secrets.oidc.token(sub="alice", groups=["admins"]),
        "jwt without rules": secrets.oidc.token(sub="bob"),
        "expired jwt": secrets.oidc.token(sub="worker", lasts_s=-120),
        "jwt for another audience": secrets.oidc.token(sub="worker", aud="else"),
        "jwt of a stranger": secrets.oidc.token(sub="worker", iss="https://evil.example"),
        "jwt with another's key": secrets.cluster.token(sub="worker", iss=secrets.oidc.issuer),
        "service account": secrets.cluster.token(**service_account("team-a", "worker")),
        "service account of another team": secrets.cluster.token(**service_account("team-b", "worker")),
        "reviewed service account": secrets.reviewed.token(sub="reviewed"),
        "service account that the review refuses": secrets.reviewed.token(sub="refused"),
        "garbage": "garbage",
    }
    secrets.reviewer.accounts[tokens["reviewed service account"]] = "team-a:worker"
    member = tokens["token of a member"]
    unknown = secrets.a_token("forgotten", "admin")
    secrets.records.pop()
    tokens["unknown token"] = unknown
    tokens["mistyped token"] = member[:-1] + ("0" if member[-1] != "0" else "1")
    tokens["unsigned jwt"] = tokens["jwt"].rpartition(".")[0] + "."
    headers = {name: list(bearer(token).items()) for name, token in tokens.items()}
    headers["anonymous"] = []
    headers["no bearer"] = [("authorization", f"Basic {member}")]
    headers["two headers"] = list(bearer(member).items()) * 2
    # The last write, so that the file holds all but the forgotten one.
    secrets.a_token("last")
    return headers


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Service, dict[str, Any]]]:
    secrets = Secrets(tmp_path_factory.mktemp("secrets"))
    headers = headers_of(secrets)
    async with a_guarded_service(secrets) as service:
        yield service, headers


def test_every_route_has_its_row(world: tuple[Service, dict[str, Any]]) -> None:
    served = {
        (method, route.path)
        for route in routes_of(world[0].api.fastapi)
        for method in (route.methods or set()) - {"HEAD"}
    }

    assert served == set(OF_ROUTES)


def test_every_rpc_has_its_row() -> None:
    """Also those of a file of the contract that is new."""
    assert {module.__name__.rpartition(".")[2] for module in MODULES} == {
        f"{file.stem}_pb2" for file in PROTO.glob("*.proto")
    }
    services = [s for module in MODULES for s in module.DESCRIPTOR.services_by_name.values()]
    rpcs = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}

    assert rpcs | {"/grpc.health.v1.Health/Check"} == set(OF_RPCS)


def test_every_kind_of_caller_has_its_credentials(world: tuple[Service, dict[str, Any]]) -> None:
    assert set(world[1]) == set(CALLERS)


def test_the_document_asks_for_proof_where_the_server_does(world: tuple[Service, dict[str, Any]]) -> None:
    document = world[0].api.openapi()
    proofs: list[dict[str, list[str]]] = [{name: []} for name in document["components"]["securitySchemes"]]

    described = {(path, method): said for path, item in document["paths"].items() for method, said in item.items()}
    asked = {(method.upper(), path): said["security"] for (path, method), said in described.items()}

    security = {OPEN: [], WHOEVER: [*proofs, {}]}
    expected = {(m, path.replace(":path", "")): security.get(a, proofs) for (m, path), a in OF_ROUTES.items()}
    assert len(proofs) == 2
    assert asked == {route: expected[route] for route in asked}
    assert {route for route, needed in expected.items() if needed} <= set(asked)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", CALLERS)
async def test_who_gets_in_over_http(world: tuple[Service, dict[str, Any]], kind: str) -> None:
    service, headers = world

    found = {route: await over_http(service.http, route, headers[kind]) for route in OF_ROUTES}

    assert found == {route: CALLERS[kind].expected(action) for route, action in OF_ROUTES.items()}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", CALLERS)
async def test_who_gets_in_over_grpc(world: tuple[Service, dict[str, Any]], kind: str) -> None:
    service, headers = world

    found = {rpc: await over_grpc(service.channel, rpc, headers[kind]) for rpc in OF_RPCS}

    assert found == {rpc: CALLERS[kind].expected(action) for rpc, action in OF_RPCS.items()}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_port_for_probes_gives_administrators_nothing_else(
    world: tuple[Service, dict[str, Any]],
) -> None:
    service, headers = world
    statuses = {}
    transport = httpx.ASGITransport(ProbesOnly(service.api))

    async with httpx.AsyncClient(transport=transport, base_url="http://rota.test", trust_env=False) as http:
        for route, (method, path, query, body) in targets_by_route().items():
            answer = await http.request(
                method, path, params=query, json=body, headers=headers["token of an administrator"]
            )
            statuses[route] = answer.status_code

    assert {path for (_, path), status in statuses.items() if status != httpx.codes.NOT_FOUND} == PROBES
    assert set(statuses) == set(OF_ROUTES)


CERTIFICATES: dict[str, tuple[dict[str, str], Caller]] = {
    "certificate of a worker": ({"uri": "spiffe://corp/ns/team-a/sa/worker"}, Caller(MEMBER)),
    "certificate of another team": ({"uri": "spiffe://corp/ns/team-b/sa/worker"}, Caller(NOTHING)),
    "certificate with a name alone": ({"common_name": "ops-console"}, Caller(EVERYTHING)),
    "certificate without rules": ({"common_name": "somebody"}, Caller(NOTHING)),
    "certificate that names nobody": ({}, Caller(NOTHING, is_proven=False, is_silent=True)),
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", CERTIFICATES)
async def test_who_gets_in_with_a_certificate(world: tuple[Service, dict[str, Any]], kind: str) -> None:
    service, _ = world
    names, caller = CERTIFICATES[kind]

    async with service.as_certificate(service.secrets.authority.issue("client", **names)) as (http, channel):
        routes = {route: await over_http(http, route, []) for route in OF_ROUTES}
        rpcs = {rpc: await over_grpc(channel, rpc, []) for rpc in OF_RPCS}

    assert routes == {route: caller.expected(action) for route, action in OF_ROUTES.items()}
    assert rpcs == {rpc: caller.expected(action) for rpc, action in OF_RPCS.items()}


# --- asking -----------------------------------------------------------------------------------------


async def over_http(client: httpx.AsyncClient, route: tuple[str, str], headers: list[tuple[str, str]]) -> str:
    method, path, query, body = targets_by_route()[route]
    async with client.stream(method, path, params=query, json=body, headers=headers) as response:
        status = response.status_code
        if status == httpx.codes.UNAUTHORIZED:
            assert response.headers["www-authenticate"].startswith("Bearer")
            return "unauthenticated"
        return "forbidden" if status == httpx.codes.FORBIDDEN else "in"


async def over_grpc(channel: grpc.aio.Channel, rpc: str, headers: list[tuple[str, str]]) -> str:
    metadata = tuple(headers)
    if rpc.endswith("/Session"):
        while (verdict := await _on_a_stream(channel, metadata)) is None:
            pass
        return verdict
    data = messages_by_rpc()[rpc]
    try:
        if rpc.endswith("/WatchGroup"):
            stream: Any = channel.unary_stream(rpc)(data, metadata=metadata)  # type: ignore[arg-type]
            await stream.initial_metadata()
            if stream.done():
                return _verdict(await stream.code())
            stream.cancel()
        else:
            answer: Any = await channel.unary_unary(rpc)(data, metadata=metadata)  # type: ignore[arg-type]
            if rpc.endswith("/HeartbeatMany"):
                # Each group answers for itself.
                return _verdict_of(pb.HeartbeatManyResponse.FromString(answer).groups[0].error)
    except grpc.aio.AioRpcError as error:
        return _verdict(error.code())
    return "in"


async def _on_a_stream(channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]) -> str | None:
    """Any caller may open a stream; each call on it, and each group of a call, is checked for itself.

    Returns None if gRPC's client lost the server's status: the server ended the stream while a message was written.
    """
    client = SessionClient(channel, metadata)
    try:
        place: dict[str, Any] = {"namespace": NAMESPACE, "group_id": GROUP}
        joined = await client.ask(join=pb.JoinGroupRequest(**place, protocol_type="worker", member_id="nobody"))
        synced = await client.ask(sync=pb.SyncGroupRequest(**place, member_id="nobody", generation_id=1))
        left = await client.ask(leave=pb.LeaveGroupRequest(**place, members=[pb.LeavingMember(member_id="nobody")]))
        beats = [pb.MemberHeartbeat(member_id="nobody", generation_id=1)]
        group = pb.GroupHeartbeat(**place, members=beats)
        seen = await client.ask(heartbeat=pb.HeartbeatManyRequest(groups=[group]))
    except (asyncio.InvalidStateError, AssertionError, grpc.aio.AioRpcError):
        if not client.stream.done():
            raise
        if await client.stream.details() == STATUS_LOST:
            return None
        # Its caller may be a member nowhere, so the server's look at open work has ended it between two calls.
        return _verdict(await client.stream.code())
    finally:
        await client.close()
    of_heartbeats = seen.error.code or seen.heartbeat.groups[0].error
    codes = {event.error.code for event in (joined, synced, left)} | {of_heartbeats}
    verdicts = {_verdict_of(code) for code in codes}
    assert len(verdicts) == 1, codes
    return verdicts.pop()


def _verdict(code: grpc.StatusCode) -> str:
    refusals = {
        grpc.StatusCode.UNAUTHENTICATED: "unauthenticated",
        grpc.StatusCode.PERMISSION_DENIED: "forbidden",
    }
    return refusals.get(code, "in")


def _verdict_of(code: str) -> str:
    return {"UNAUTHENTICATED": "unauthenticated", "GROUP_AUTHORIZATION_FAILED": "forbidden"}.get(code, "in")


def _examples() -> Iterator[m.Request]:
    """The documentation's examples, where the rules are about, and without waiting for anything."""
    here: dict[str, Any] = {"namespace": NAMESPACE, "group_id": GROUP, "topic": TOPIC, "wait_ms": 0}
    for request, _ in EXAMPLES:
        yield structs.replace(request, **{name: here[name] for name in here if hasattr(request, name)})


def targets_by_route() -> dict[tuple[str, str], tuple[str, str, Any, Any]]:
    targets: dict[tuple[str, str], tuple[str, str, Any, Any]] = {}
    for request in _examples():
        call, target = CALLS[type(request)], encode_request(request)
        targets[(call.method, call.path)] = (target.method, target.path, target.query, target.body)
    here = {"namespace": NAMESPACE, "group_id": GROUP}
    queries: dict[str, dict[str, Any]] = {
        "/v1/events": {"shard": 0},
        "/v1/can-i": {"action": "join", **here},
    }
    by_hand = [path for path in OF_ROUTES if path not in targets]
    for method, path in by_hand:
        filled = path.replace(":path", "").format(**here, member_id="nobody")
        targets[(method, path)] = (method, filled, queries.get(path, {}), None)
    assert MEMBER_PATH.format(**here, member_id="nobody") in [target[1] for target in targets.values()]
    return targets


def messages_by_rpc() -> dict[str, bytes]:
    messages = {}
    for request in _examples():
        rpc = RPCS[type(request)]
        messages[rpc.path] = rpc.write_request(request).SerializeToString()
    place: dict[str, Any] = {"namespace": NAMESPACE, "group_id": GROUP}
    removal = m.LeaveGroup(NAMESPACE, GROUP, (m.LeavingMember("nobody"),), by_admin=True)
    group = pb.GroupHeartbeat(**place, members=[pb.MemberHeartbeat(member_id="nobody", generation_id=1)])
    return {
        **messages,
        REMOVE_MEMBERS.path: REMOVE_MEMBERS.write_request(removal).SerializeToString(),
        f"/{COORDINATOR}/HeartbeatMany": pb.HeartbeatManyRequest(groups=[group]).SerializeToString(),
        f"/{COORDINATOR}/FindCoordinator": pb.FindCoordinatorRequest(**place).SerializeToString(),
        f"/{ADMIN}/WatchGroup": admin_pb2.WatchGroupRequest(**place).SerializeToString(),
        f"/{ACCESS}/WhoAmI": b"",
        f"/{ACCESS}/CanI": access_pb2.CanIRequest(action="join", **place).SerializeToString(),
        "/grpc.health.v1.Health/Check": b"",
    }
