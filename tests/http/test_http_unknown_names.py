"""A name that does not exist is refused on every route, at every level, and nothing comes of the request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx
import pytest

from rota.protocol.wire.routes import encode_request
from rota.server.http.app import build_fastapi
from tests.http.scripted import ScriptedCoordinator
from tests.support.examples import EXAMPLES

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOCUMENT = build_fastapi(guarded=True).openapi()
MISSPELT = "misspelt_feild"
NAMES = {"namespace": "default", "group_id": "indexers", "topic": "words", "member_id": "m-1"}
FREE_FORM = {"attributes"}
"""Objects with names of the caller's own."""
IGNORING = {"/healthz", "/readyz", "/metrics", "/.well-known/jwks.json"}
"""Load balancers and scrapers add parameters to these; a refusal would take a replica out of service."""
ROUTES = [
    (method.upper(), path, described)
    for path, methods in DOCUMENT["paths"].items()
    if path not in IGNORING
    for method, described in methods.items()
]


def url_of(path: str) -> str:
    return path.format(**NAMES)


def bodies_of(described: dict[str, Any]) -> list[Any]:
    examples = [each for each in EXAMPLES if each.call.operation == described["operationId"] and each.call.has_body]
    bodies: list[Any] = [encode_request(each.request).body for each in examples]
    if described["operationId"] == "groupsHeartbeat":
        bodies.append({"members": [{"member_id": "m", "generation_id": 1}]})
    return bodies


def misspelt(value: Any) -> Iterator[Any]:
    """Copies of a document, each with one name too many, at each of its levels."""
    if isinstance(value, dict):
        yield {**value, MISSPELT: 1}
        yield {**value, MISSPELT: None}
        for name, item in value.items():
            if name not in FREE_FORM:
                yield from ({**deepcopy(value), name: changed} for changed in misspelt(item))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            for changed in misspelt(item):
                yield [*value[:index], changed, *value[index + 1 :]]


BODIES = [
    (method, path, body)
    for method, path, described in ROUTES
    for example in bodies_of(described)
    for body in misspelt(example)
]


async def test_every_call_with_a_body_is_among_those_that_are_tried() -> None:
    assert len({(method, path) for method, path, _ in BODIES}) >= 8
    assert any("protocols" in body and MISSPELT in body["protocols"][0] for _, _, body in BODIES)
    assert any("members" in body and MISSPELT in body["members"][0] for _, _, body in BODIES)


@pytest.mark.parametrize(("method", "path", "body"), BODIES, ids=[f"{m} {p} {json.dumps(b)}" for m, p, b in BODIES])
async def test_an_unknown_field_is_refused(
    client: httpx.AsyncClient, scripted: ScriptedCoordinator, method: str, path: str, body: Any
) -> None:
    response = await client.request(method, url_of(path), json=body)

    assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST")
    assert "unknown field '" in response.json()["detail"]
    assert MISSPELT in response.json()["detail"]
    assert scripted.requests == []


@pytest.mark.parametrize(("method", "path", "described"), ROUTES, ids=[f"{m} {p}" for m, p, _ in ROUTES])
async def test_an_unknown_query_parameter_is_refused(
    client: httpx.AsyncClient, scripted: ScriptedCoordinator, method: str, path: str, described: dict[str, Any]
) -> None:
    body = next(iter(bodies_of(described)), None)
    response = await client.request(method, url_of(path), params={MISSPELT: "1"}, json=body)

    assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST")
    assert f"unknown query parameter '{MISSPELT}'" in response.json()["detail"]
    assert scripted.requests == []


@pytest.mark.parametrize("path", sorted(IGNORING))
async def test_probes_ignore_what_is_added_to_them(client: httpx.AsyncClient, path: str) -> None:
    assert path in DOCUMENT["paths"]
    assert (await client.get(path, params={MISSPELT: "1"})).status_code == (await client.get(path)).status_code == 200


async def test_the_nearest_name_is_suggested(client: httpx.AsyncClient, scripted: ScriptedCoordinator) -> None:
    groups = "/v1/namespaces/default/groups"
    join = {"sesion_timeout_ms": 5_000, "protocol_type": "w", "protocols": [{"name": "p"}]}
    said = [
        (await client.post(f"{groups}/g/join", json=join)).json()["detail"],
        (await client.get(groups, params={"protocl_type": "x"})).json()["detail"],
        (await client.get(groups, params={"states": "Stabel"})).json()["detail"],
    ]
    assert said == [
        "unknown field 'sesion_timeout_ms'; did you mean 'session_timeout_ms'?",
        "unknown query parameter 'protocl_type'; did you mean 'protocol_types'?",
        "unknown state 'Stabel'; did you mean 'Stable'?",
    ]
    assert scripted.requests == []
