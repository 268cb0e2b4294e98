"""The OpenAPI document: valid, complete, and the one that is committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from openapi_spec_validator import validate

from docs.api_reference import dump_openapi
from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.wire.replies import write_reply
from rota.protocol.wire.routes import encode_request, read_request
from rota.server.http.app import HttpApi
from tests.http.routes import routes_of
from tests.support.examples import EXAMPLES, Example, name_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMMITTED = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
METHODS = {"get", "put", "post", "delete"}


@pytest.fixture
def document(api: HttpApi) -> dict[str, Any]:
    return api.openapi()


def dumped() -> dict[str, Any]:
    """The document as it is committed: that of a server with rules."""
    written: dict[str, Any] = json.loads(dump_openapi())
    return written


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, described) for path, item in document["paths"].items() for method, described in item.items()]


async def test_the_document_is_valid_and_served(document: dict[str, Any], client: httpx.AsyncClient) -> None:
    validate(document)
    assert (await client.get("/openapi.json")).json() == document


async def test_the_committed_document_is_current() -> None:
    assert COMMITTED.read_text() == dump_openapi()


async def test_every_route_is_documented_and_exists(
    api: HttpApi, document: dict[str, Any], client: httpx.AsyncClient
) -> None:
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in routes_of(api.fastapi)
        for method in route.methods or ()
        if method.lower() in METHODS
    }
    documented = {(path, method) for path, method, _ in operations(document)}
    assert served - {("/openapi.json", "get")} == documented


async def test_a_server_without_rules_asks_nobody_for_a_proof(document: dict[str, Any]) -> None:
    asked = [described["security"] for _, _, described in operations(document) if described["security"]]

    assert asked
    assert all({} in proofs for proofs in asked)
    assert document["components"]["securitySchemes"] == dumped()["components"]["securitySchemes"]
    still_optional = {path for path, _, described in operations(dumped()) if {} in described["security"]}
    assert still_optional == {"/v1/whoami", "/v1/can-i", "/v1/namespaces"}


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
async def test_every_call_fits_its_schema(example: Example, document: dict[str, Any]) -> None:
    call = example.call
    described = document["paths"][call.path][call.method.lower()]
    answer = json.loads(write_reply(example.reply, 42, 3))
    documents = [(answer, described["responses"]["200"]["content"])]
    if call.has_body:
        documents.append((encode_request(example.request).body, described["requestBody"]["content"]))

    for written, content in documents:
        schema = {**content["application/json"]["schema"], "components": document["components"]}
        jsonschema.validate(written, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("example", [each for each in EXAMPLES if each.call.has_body], ids=name_of)
async def test_a_field_is_required_exactly_where_the_schema_says_so(example: Example, document: dict[str, Any]) -> None:
    body = encode_request(example.request).body
    assert body is not None
    kind, path = example.call.request, dict.fromkeys(example.call.path_names, "name")
    required = document["components"]["schemas"].get(kind.__name__, {}).get("required", [])
    read_request(kind, path, json.dumps(body).encode(), Limits())
    for name in body:
        without = {key: value for key, value in body.items() if key != name}
        if name in required:
            with pytest.raises(RejectedRequest, match=f"{name} is missing"):
                read_request(kind, path, json.dumps(without).encode(), Limits())
        else:
            read_request(kind, path, json.dumps(without).encode(), Limits())
