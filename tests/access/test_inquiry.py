"""What callers learn about themselves, over HTTP and gRPC alike: identity, rights, and which rule says so."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from rota.server.grpc.calls import ACCESS
from rota.server.http.app import create_app
from rota.v1 import access_pb2 as pb
from tests.access.guarded import GROUP, NAMESPACE, TOPIC, Service, bearer
from tests.http.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
FROZEN = """
[[rules]]
name = "frozen for the audit"
subjects = ["*"]
actions = ["join"]
namespaces = ["team-a"]
groups = ["ledger*"]
effect = "deny"

[[rules]]
name = "callers without a name may look"
subjects = ["anonymous"]
actions = ["viewer"]
namespaces = ["lobby"]
"""
ASKED: list[tuple[dict[str, str], bool, str]] = [
    ({"action": "join", "namespace": NAMESPACE, "group_id": GROUP}, True, "scope of ci"),
    ({"action": "join", "namespace": NAMESPACE, "group_id": "ledger-1"}, False, "frozen for the audit"),
    ({"action": "join", "namespace": "team-b", "group_id": GROUP}, False, ""),
    ({"action": "describe", "namespace": NAMESPACE, "topic": TOPIC}, True, "scope of ci"),
    ({"action": "administer", "namespace": NAMESPACE, "topic": TOPIC}, False, ""),
    ({"action": "describe", "namespace": NAMESPACE}, True, "scope of ci"),
    ({"action": "metrics"}, False, ""),
]

GUARDED_BY = FROZEN


async def over_http(service: Service, path: str, token: str, query: dict[str, str] | None = None) -> Any:
    response = await service.http.get(path, params=query, headers=bearer(token) if token else {})
    return response.json()


async def over_grpc(service: Service, name: str, token: str, request: Any, response: Any) -> Any:
    call: Any = service.channel.unary_unary(f"/{ACCESS}/{name}")
    metadata = tuple(bearer(token).items()) if token else ()
    answer = response.FromString(await call(request.SerializeToString(), metadata=metadata))
    always = {"always_print_fields_with_no_presence": True}
    return MessageToDict(answer, preserving_proto_field_name=True, **always)  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "allowed", "rule"), ASKED)
async def test_a_caller_asks_whether_it_may_and_which_rule_decides(
    service: Service, asked: dict[str, str], allowed: bool, rule: str
) -> None:
    token = service.secrets.a_token("ci")

    got = await over_http(service, "/v1/can-i", token, asked)

    assert (got["allowed"], got["rule"]) == (allowed, rule)
    assert got["detail"].startswith(f"token:ci may {'' if allowed else 'not '}{asked['action']} ")
    assert got == await over_grpc(service, "CanI", token, pb.CanIRequest(**asked), pb.CanIResponse)


async def test_a_caller_gets_its_name_and_the_rules_for_it(service: Service) -> None:
    at_ms = int(time.time() * 1000) + 3_600_000
    token = service.secrets.a_token("nightly", expires_at_ms=at_ms)

    got = await over_http(service, "/v1/whoami", token)

    assert (got["subject"], got["method"], got["expires_at_ms"]) == ("token:nightly", "token", at_ms)
    assert [(rule["name"], rule["effect"]) for rule in got["rules"]] == [
        ("frozen for the audit", "deny"),
        ("scope of nightly", "allow"),
    ]
    assert got["rules"][1]["actions"] == ["describe", "join", "commit"]
    assert "subjects" not in got["rules"][0]
    same = await over_grpc(service, "WhoAmI", token, pb.WhoAmIRequest(), pb.WhoAmIResponse)
    assert {**same, "expires_at_ms": int(same["expires_at_ms"])} == got


async def test_a_caller_sees_the_namespaces_that_it_may_read(service: Service) -> None:
    of_ci = await over_http(service, "/v1/namespaces", service.secrets.a_token("ci"))
    of_anonymous = await over_http(service, "/v1/namespaces", "")
    of_admin = await over_http(service, "/v1/namespaces", service.secrets.oidc.token(sub="al", groups=["admins"]))

    assert of_ci == {"namespaces": [NAMESPACE]}
    assert of_anonymous == {"namespaces": ["lobby"]}
    assert of_admin == {"namespaces": ["lobby", NAMESPACE, "team-b"]}


async def test_the_store_is_not_asked_for_callers_without_any_right(service: Service) -> None:
    async def asked() -> list[str]:
        raise AssertionError("the store was asked for namespaces")

    revoked = service.secrets.a_token("revoked", revoked_at_ms=1)
    unknown = service.secrets.oidc.token(sub="eve")
    app = create_app(service.coordinator, guard=service.guard, namespaces=asked)
    async with serving(app) as http:
        of_eve = await http.get("/v1/namespaces", headers=bearer(unknown))
        of_revoked = await http.get("/v1/namespaces", headers=bearer(revoked))

    assert of_eve.json() == {"namespaces": []}
    assert of_revoked.status_code == 401


async def test_a_caller_without_proof_is_anonymous_and_gets_its_rights(service: Service) -> None:
    got = await over_http(service, "/v1/whoami", "")

    asked = {"action": "describe", "namespace": "lobby", "group_id": GROUP}
    assert (got["subject"], [rule["name"] for rule in got["rules"]]) == (
        "anonymous",
        ["callers without a name may look"],
    )
    assert (await over_http(service, "/v1/can-i", "", asked))["allowed"] is True
    assert (await over_http(service, "/v1/can-i", "", {**asked, "namespace": NAMESPACE}))["allowed"] is False


async def test_credentials_that_prove_nothing_are_answered_with_why(service: Service) -> None:
    token = service.secrets.a_token("gone", revoked_at_ms=1)

    for path in ("/v1/whoami", "/v1/can-i?action=metrics"):
        got = await over_http(service, path, token)
        assert (got["code"], got["detail"]) == ("UNAUTHENTICATED", "token 'gone' was revoked")
    with pytest.raises(grpc.aio.AioRpcError, match="was revoked"):
        await over_grpc(service, "WhoAmI", token, pb.WhoAmIRequest(), pb.WhoAmIResponse)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({}, "action is missing"),
        ({"action": "fly", "namespace": NAMESPACE}, "action must be one of describe, join"),
        ({"action": "join"}, "all other actions about a namespace"),
        ({"action": "metrics", "namespace": NAMESPACE}, "about the server"),
        ({"action": "metrics", "group_id": GROUP}, "namespace is missing"),
        ({"action": "join", "namespace": NAMESPACE, "group_id": GROUP, "topic": TOPIC}, "two questions"),
        ({"action": "join", "namespace": "no/name"}, "namespace must be"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    service: Service, asked: dict[str, str], complaint: str
) -> None:
    got = await over_http(service, "/v1/can-i", "", asked)

    assert got["code"] == "INVALID_REQUEST"
    assert complaint in got["detail"]
