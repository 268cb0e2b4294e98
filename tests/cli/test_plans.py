"""`rota groups plan` over a real server: its output, and how it rejects a hypothesis."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import httpx
import pytest

from rota.cli.exits import Exit
from tests.cli.conftest import Rota

pytestmark = pytest.mark.processes

METADATA = b64encode(b'{"topics": ["words"]}').decode()


@pytest.fixture
def group(rota: Rota) -> str:
    """One member, which has both partitions of the topic."""
    rota("topics", "put", "words", "--partitions", "2")
    base = f"{rota.url}/v1/namespaces/{rota.namespace}/groups/readers"
    protocols = [{"name": "server:sticky", "metadata": METADATA}]
    body = {"protocol_type": "consumer", "protocols": protocols, "group_instance_id": "pod-0"}
    with httpx.Client(trust_env=False, timeout=30) as http:
        joined = http.post(f"{base}/join", json=body).raise_for_status().json()
        sync = {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
        http.post(f"{base}/sync", json=sync).raise_for_status()
    return "readers"


def test_a_plan_is_printed_for_people_and_for_programs(rota: Rota, group: str) -> None:
    hypothesis = ("--members", "+1", "--partitions", "words=3", "--strategy", "server:roundrobin")

    reported = rota("groups", "plan", group, *hypothesis)
    plan: dict[str, Any] = json.loads(rota("groups", "plan", group, *hypothesis, "-o", "json").out)

    assert reported.exit_code == 0, reported.err
    lines = [line.split() for line in reported.out.splitlines()]
    member_id = plan["members"][0]["member_id"]
    moved = {"topic": "words", "partitions": [1], "from_member_id": member_id, "to_member_id": "new-1"}
    assert (plan["group_id"], plan["moves"], plan["moved"]) == ("readers", 1, [moved])
    assert ["strategy:", "server:sticky", "->", "server:roundrobin"] in lines
    assert [member_id, "pod-0", "stays", "words/0,1", "words/0,2", "words/0,1"] in lines
    assert ["new-1", "-", "joins", "-", "words/1", "-"] in lines
    assert ["words/1", member_id, "new-1"] in lines


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--without", "pod-O"], "without[0]: unknown member 'pod-O'; did you mean 'pod-0'? (INVALID_REQUEST)"),
        (["--strategy", "stiky"], "strategy: unknown strategy 'stiky'; did you mean 'sticky'? (INVALID_REQUEST)"),
        (["--partitions", "words=1"], "partitions of words must be at least 2: words has as many"),
        (["--partitions", "words"], "must look like orders=12, not 'words'"),
        (["--members", "2"], "must look like +2, not '2'; members that leave are named by --without"),
    ],
)
def test_a_hypothesis_that_does_not_fit_is_refused(rota: Rota, group: str, options: list[str], says: str) -> None:
    refused = rota("groups", "plan", group, *options)

    assert says in " ".join(refused.err.replace("│", " ").split())
    assert refused.exit_code == Exit.USAGE
