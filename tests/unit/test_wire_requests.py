"""Requests in JSON: what the SDK writes the server reads, and nothing else gets through."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from msgspec import NODEFAULT

from rota.protocol import messages as m
from rota.protocol.calls import CALLS
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.filters import STATE_NAMES, STATES_PATTERN
from rota.protocol.limits import Limits
from rota.protocol.wire.documents import dump_document, parse_document
from rota.protocol.wire.routes import REQUESTS as SHAPES
from rota.protocol.wire.routes import encode_request, read_query, read_request

LIMITS = Limits()
GROUP = {"namespace": "default", "group_id": "indexers:v1"}
TOPIC = {"namespace": "default", "topic": "documents"}

REQUESTS: list[m.Request] = [
    m.JoinGroup("default", "indexers:v1", "worker", (m.Protocol("range", b"\x00\xff"),), 10_000, 20_000, wait_ms=5),
    m.JoinGroup(
        "default",
        "indexers:v1",
        "consumer",
        (m.Protocol("a"), m.Protocol("b", b"b")),
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id="client-1",
        group_instance_id="pod-0",
        client_id="client ü",
        reason="because",
        wait_ms=30_000,
    ),
    m.SyncGroup("default", "indexers:v1", "m-1", 4, wait_ms=0),
    m.SyncGroup(
        "default",
        "indexers:v1",
        "m-1",
        4,
        group_instance_id="pod-0",
        protocol_type="worker",
        protocol_name="range",
        assignments=(("m-1", b"one"), ("m-2", b"")),
        leader_error="no idea",
        wait_ms=1_000,
    ),
    m.Heartbeat("default", "indexers:v1", "m-1", 4, "pod-0", wait_ms=3_000),
    m.LeaveGroup("default", "indexers:v1", (m.LeavingMember("m-1", None, "done"), m.LeavingMember("", "pod-0"))),
    m.CommitOffsets(
        "default",
        "indexers:v1",
        4,
        (m.OffsetToCommit("documents", 0, 12, 3, "note"), m.OffsetToCommit("documents", 1, 2**63 - 1, topic_id=4)),
        member_id="m-1",
    ),
    m.FetchOffsets("default", "indexers:v1"),
    m.FetchOffsets("default", "indexers:v1", (m.TopicPartitions("a:b", (0, 1)), m.TopicPartitions("c", (7,)))),
    m.DeleteOffsets("default", "indexers:v1", (m.TopicPartitions("documents", (0, 2**31 - 1)),)),
    m.VerifyFence("default", "indexers:v1", 4, "m-1"),
    m.DescribeGroup("default", "indexers:v1"),
    m.ListGroups("default", ("Stable", "Empty"), ("classic",), ("worker",), after="indexers:v1", limit=10),
    m.ListGroups("default"),
    m.DeleteGroup("default", "indexers:v1", "no longer used"),
    m.RebalanceGroup("default", "indexers:v1", "new machines", True),
    m.FreezeGroup("default", "indexers:v1", 60_000, "a migration"),
    m.FreezeGroup("default", "indexers:v1", 0),
    m.QuarantineGroup("default", "indexers:v1", 3, 2, 60_000, ("docs/3",), "an incident"),
    m.QuarantineGroup("default", "indexers:v1"),
    m.DrainMember("default", "indexers:v1", "m-1"),
    m.DrainMember("default", "indexers:v1", "", "pod-0", 2, 30_000, "an eviction"),
    m.GetLeader("default", "indexers:v1", after_generation=-1, wait_ms=2_000),
    m.PutTopic("default", "documents", 12, {"owner": "search", "unit": "shards"}),
    m.GetTopic("default", "documents"),
    m.DeleteTopic("default", "documents"),
    m.ListTopics("default", after="documents", limit=1),
]


def sent_and_read(request: m.Request) -> m.Request:
    """The way of a request from the SDK to the server, with everything that HTTP does to it."""
    target = encode_request(request)
    call = CALLS[type(request)]
    path = dict(zip(call.path_names, _path_values(call.path, target.path), strict=True))
    if target.body is None:
        decoded: m.Request = read_query(call.request, path, target.query, LIMITS)
    else:
        decoded = read_request(call.request, path, dump_document(target.body), LIMITS)
    return decoded


def _path_values(template: str, path: str) -> list[str]:
    pairs = zip(template.split("/"), path.split("/"), strict=True)
    return [unquote(value) for name, value in pairs if name.startswith("{")]


def read(request_type: type[m.Request], document: dict[str, Any], limits: Limits = LIMITS) -> Any:
    path = TOPIC if request_type is m.PutTopic else GROUP
    if CALLS[request_type].has_body:
        return read_request(request_type, path, json.dumps(document).encode(), limits)
    query = [(name, text) for name, texts in document.items() for text in texts]
    return read_query(request_type, path, query, limits)


def listed(*query: tuple[str, str]) -> Any:
    return read_query(m.ListGroups, {"namespace": "n"}, query, LIMITS)


def rejection_of(request_type: type[m.Request], document: dict[str, Any]) -> RejectedRequest:
    with pytest.raises(RejectedRequest) as caught:
        read(request_type, document)
    return caught.value


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_what_the_client_sends_the_server_reads(request_: m.Request) -> None:
    assert sent_and_read(request_) == request_


def test_every_request_of_the_protocol_has_a_route_and_a_sample() -> None:
    # Over HTTP, several heartbeats share the route of a single one. No caller has a topic forgotten.
    every_request = set(CALLS) - {m.HeartbeatMany, m.ForgetTopic}
    assert {call.request for call in CALLS.values() if call.path} == every_request
    assert {type(request) for request in REQUESTS} == every_request


@pytest.mark.parametrize(("protocol_type", "rebalance_timeout_ms"), [("consumer", 300_000), ("worker", 60_000)])
def test_a_join_that_says_little_gets_the_documented_defaults(protocol_type: str, rebalance_timeout_ms: int) -> None:
    join = read(m.JoinGroup, {"protocol_type": protocol_type, "protocols": [{"name": "range"}]})
    assert join == m.JoinGroup(
        "default",
        "indexers:v1",
        protocol_type,
        (m.Protocol("range"),),
        session_timeout_ms=45_000,
        rebalance_timeout_ms=rebalance_timeout_ms,
        wait_ms=30_000,
    )


def test_waits_default_to_none_and_end_at_fifty_seconds() -> None:
    heartbeat = {"member_id": "m", "generation_id": 1}
    assert read(m.Heartbeat, heartbeat).wait_ms == 0
    assert read(m.SyncGroup, heartbeat).wait_ms == 30_000
    assert m.parks_for_ms(read(m.Heartbeat, {**heartbeat, "wait_ms": 3_600_000})) == 50_000


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_null_means_absent_in_each_field_that_has_a_default(request_: m.Request) -> None:
    document, kind = encode_request(request_).body or {}, type(request_)
    optional = [entry.name for entry in SHAPES[kind].entries if entry.default is not NODEFAULT]
    checked_together = {"generation_id", "fencing_token"} if kind is m.VerifyFence else set[str]()

    for name in set(optional) - checked_together if CALLS[kind].has_body else ():
        without = {other: value for other, value in document.items() if other != name}
        assert read(kind, {**without, name: None}) == read(kind, without), name


def test_null_means_absent() -> None:
    document = {"member_id": "m", "generation_id": 1, "wait_ms": None}
    assert read(m.Heartbeat, document) == m.Heartbeat("default", "indexers:v1", "m", 1, wait_ms=0)

    offset = {"topic": "t", "partition": 0, "offset": 1, "metadata": None, "leader_epoch": None}
    commit = m.CommitOffsets("default", "indexers:v1", m.NO_GENERATION, (m.OffsetToCommit("t", 0, 1),))
    assert read(m.CommitOffsets, {"generation_id": None, "member_id": None, "offsets": [offset]}) == commit


@pytest.mark.parametrize(
    ("request_type", "document", "says"),
    [
        (
            m.JoinGroup,
            {"sesion_timeout_ms": 5_000, "protocol_type": "w", "protocols": [{"name": "p"}]},
            "unknown field 'sesion_timeout_ms'; did you mean 'session_timeout_ms'?",
        ),
        (
            m.JoinGroup,
            {"protocol_type": "w", "protocols": [{"name": "p"}, {"name": "q", "metdata": None}]},
            "unknown field 'protocols[1].metdata'; did you mean 'metadata'?",
        ),
        (
            m.SyncGroup,
            {"member_id": "m", "generation_id": 1, "assignments": [{"memberId": "m", "assignment": ""}]},
            "unknown field 'assignments[0].memberId'; did you mean 'member_id'?",
        ),
        (
            m.CommitOffsets,
            {"offsets": [{"topic": "t", "partition": 0, "offset": 1, "retention": 5}]},
            "unknown field 'offsets[0].retention'; did you mean 'retention_time_ms'?",
        ),
        (m.RebalanceGroup, {"zzz": 1}, "unknown field 'zzz'; known are reason, step_down"),
        (m.RebalanceGroup, {"\x00\u202e": 1}, "unknown field '\\x00\\u202e'; known are reason, step_down"),
        (m.RebalanceGroup, {"x" * 5_000: 1}, f"unknown field '{'x' * 64}'; known are reason, step_down"),
        (m.RebalanceGroup, {"REASON": 1}, "unknown field 'REASON'; did you mean 'reason'?"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(
    request_type: type[m.Request], document: dict[str, Any], says: str
) -> None:
    with pytest.raises(RejectedRequest) as rejected:
        read(request_type, document)
    assert (rejected.value.code, rejected.value.detail) == (ErrorCode.INVALID_REQUEST, says)


def test_an_unknown_parameter_is_rejected_with_the_nearest_one() -> None:
    with pytest.raises(RejectedRequest, match="unknown query parameter 'protocl_type'; did you mean 'protocol_types'"):
        listed(("states", "Stable"), ("protocl_type", "x"))


def test_states_are_read_in_any_case_with_blanks() -> None:
    assert listed(("states", " stable , EMPTY"), ("states", "Stable"), ("states", "")).states == ("Stable", "Empty")


def test_an_unknown_state_is_rejected_with_the_nearest_one() -> None:
    for text, near in (("Stabel", "did you mean 'Stable'"), ("Foo", "known are CompletingRebalance, Dead, Empty")):
        with pytest.raises(RejectedRequest, match=f"unknown state '{text}'; {near}"):
            listed(("states", f"empty,{text}"))


def test_the_schema_admits_the_states_that_the_server_admits() -> None:
    for text in ("Stable", " stable , EMPTY", "", ",", *STATE_NAMES):
        assert re.search(STATES_PATTERN, text), text
    for text in ("Foo", "Stable Empty", "Stable;", "\nStable"):
        assert not re.search(STATES_PATTERN, text), text


WRONG: list[tuple[type[m.Request], dict[str, Any], ErrorCode, str]] = [
    (m.Heartbeat, {"generation_id": 1}, ErrorCode.INVALID_REQUEST, "member_id is missing"),
    (m.Heartbeat, {"member_id": None, "generation_id": 1}, ErrorCode.INVALID_REQUEST, "member_id is missing"),
    (m.Heartbeat, {"member_id": 5, "generation_id": 1}, ErrorCode.INVALID_REQUEST, "member_id must be a string"),
    (m.Heartbeat, {"member_id": "m", "generation_id": True}, ErrorCode.INVALID_REQUEST, "generation_id must be an"),
    (m.Heartbeat, {"member_id": "m", "generation_id": 1.0}, ErrorCode.INVALID_REQUEST, "generation_id must be an"),
    (m.Heartbeat, {"member_id": "m", "generation_id": "1"}, ErrorCode.INVALID_REQUEST, "generation_id must be an"),
    (
        m.Heartbeat,
        {"member_id": "m", "generation_id": 2**31},
        ErrorCode.INVALID_REQUEST,
        "generation_id must be at most",
    ),
    (m.Heartbeat, {"member_id": "m", "generation_id": -2}, ErrorCode.INVALID_REQUEST, "generation_id must be at least"),
    (m.Heartbeat, {"member_id": "m\n", "generation_id": 1}, ErrorCode.INVALID_REQUEST, "member_id is not one"),
    (m.Heartbeat, {"member_id": "m\ud800", "generation_id": 1}, ErrorCode.INVALID_REQUEST, "the body is not valid"),
    (m.Heartbeat, {"member_id": "m" * 513, "generation_id": 1}, ErrorCode.INVALID_REQUEST, "member_id is not one"),
    (
        m.Heartbeat,
        {"member_id": "m", "generation_id": 1, "group_instance_id": ""},
        ErrorCode.INVALID_REQUEST,
        "group_instance_id must be 1 to 249",
    ),
    (
        m.Heartbeat,
        {"member_id": "m", "generation_id": 1, "wait_ms": -1},
        ErrorCode.INVALID_REQUEST,
        "wait_ms must be at least 0",
    ),
    (
        m.Heartbeat,
        {"member_id": "m", "generation_id": 1, "wait_ms": 2**53},
        ErrorCode.INVALID_REQUEST,
        "wait_ms must be at most 9007199254740991",
    ),
    (m.JoinGroup, {"protocols": []}, ErrorCode.INVALID_REQUEST, "protocol_type is missing"),
    (m.JoinGroup, {"protocol_type": "worker"}, ErrorCode.INVALID_REQUEST, "protocols is missing"),
    (
        m.JoinGroup,
        {"protocol_type": "worker", "protocols": {"name": "range"}},
        ErrorCode.INVALID_REQUEST,
        "protocols must be a list",
    ),
    (
        m.JoinGroup,
        {"protocol_type": "worker", "protocols": [{"name": "a"}, 5]},
        ErrorCode.INVALID_REQUEST,
        "protocols[1] must be an object",
    ),
    (
        m.JoinGroup,
        {"protocol_type": "worker", "protocols": [{"name": "a"}, {"metadata": ""}]},
        ErrorCode.INVALID_REQUEST,
        "protocols[1].name is missing",
    ),
    (
        m.JoinGroup,
        {"protocol_type": "worker", "protocols": [{"name": "a", "metadata": "not base64!"}]},
        ErrorCode.INVALID_REQUEST,
        "protocols[0].metadata must be standard base64",
    ),
    (
        m.JoinGroup,
        {"protocol_type": "worker", "protocols": [{"name": "a", "metadata": "QUI"}]},
        ErrorCode.INVALID_REQUEST,
        "protocols[0].metadata must be standard base64",
    ),
    (
        m.JoinGroup,
        {"protocol_type": "worker", "protocols": [{"name": "a", "metadata": "QU\u00fc="}]},
        ErrorCode.INVALID_REQUEST,
        "protocols[0].metadata must be standard base64",
    ),
    (
        m.JoinGroup,
        {"protocol_type": "worker", "protocols": [{"name": "a", "metadata": "A" * 87_388}]},
        ErrorCode.PAYLOAD_TOO_LARGE,
        "protocols[0].metadata must be at most 65536 bytes",
    ),
    (
        m.JoinGroup,
        {"protocol_type": "worker", "protocols": [{"name": str(i)} for i in range(10_000)]},
        ErrorCode.PAYLOAD_TOO_LARGE,
        "protocols must have at most 64 items",
    ),
    (
        m.JoinGroup,
        {"protocol_type": "worker\x00", "protocols": []},
        ErrorCode.INVALID_REQUEST,
        "protocol_type must be Unicode text without NUL",
    ),
    (
        m.JoinGroup,
        {"protocol_type": "worker", "protocols": [], "client_id": "tab\t"},
        ErrorCode.INVALID_REQUEST,
        "client_id must be at most 255 printable",
    ),
    (
        m.JoinGroup,
        {"protocol_type": "worker", "protocols": [], "reason": "x" * 1_001},
        ErrorCode.PAYLOAD_TOO_LARGE,
        "reason must be at most 1000",
    ),
    (m.LeaveGroup, {"members": [{}]}, ErrorCode.INVALID_REQUEST, "members[0] must have a member_id"),
    (
        m.CommitOffsets,
        {"offsets": [{"topic": "a/b", "partition": 0, "offset": 1}]},
        ErrorCode.INVALID_REQUEST,
        "offsets[0].topic must be 1 to 249",
    ),
    (
        m.CommitOffsets,
        {"offsets": [{"topic": "a", "partition": -1, "offset": 1}]},
        ErrorCode.INVALID_REQUEST,
        "offsets[0].partition must be at least 0",
    ),
    (
        m.CommitOffsets,
        {"offsets": [{"topic": "a", "partition": 0, "offset": 2**63}]},
        ErrorCode.INVALID_REQUEST,
        "offsets[0].offset must be",
    ),
    (
        m.CommitOffsets,
        {"offsets": [{"topic": "a", "partition": 0, "offset": -1}]},
        ErrorCode.INVALID_REQUEST,
        "offsets[0].offset must be at least 0",
    ),
    (
        m.CommitOffsets,
        {"offsets": [{"topic": "a", "partition": 0, "offset": ""}]},
        ErrorCode.INVALID_REQUEST,
        "offsets[0].offset must be an integer, or a string of its digits",
    ),
    (
        m.CommitOffsets,
        {"offsets": [{"topic": "a", "partition": 0, "offset": 1, "metadata": "\x00"}]},
        ErrorCode.INVALID_REQUEST,
        "offsets[0].metadata must be Unicode",
    ),
    (m.PutTopic, {"partitions": 0}, ErrorCode.INVALID_PARTITIONS, "partitions must be from 1"),
    (m.PutTopic, {"partitions": 1_000_001}, ErrorCode.INVALID_PARTITIONS, "partitions must be from 1"),
    (
        m.PutTopic,
        {"partitions": 1, "attributes": {"a": 1}},
        ErrorCode.INVALID_REQUEST,
        "attributes[...] must be a string",
    ),
    (
        m.PutTopic,
        {"partitions": 1, "attributes": {"a\0": "b"}},
        ErrorCode.INVALID_REQUEST,
        "a name in attributes must be Unicode text without NUL",
    ),
    (m.FetchOffsets, {"topic": ["documents"]}, ErrorCode.INVALID_REQUEST, "topic[0] must look like"),
    (m.FetchOffsets, {"topic": ["documents/"]}, ErrorCode.INVALID_REQUEST, "topic[0].partitions must have at least 1"),
    (m.FetchOffsets, {"topic": ["documents/\u0663"]}, ErrorCode.INVALID_REQUEST, "topic[0] must look like"),
    (m.FetchOffsets, {"topic": ["documents/" + "9" * 5_000]}, ErrorCode.INVALID_REQUEST, "topic[0] must look like"),
    (
        m.FetchOffsets,
        {"topic": ["documents/4294967296"]},
        ErrorCode.INVALID_REQUEST,
        "topic[0].partitions[0] must be at most 2147483647",
    ),
    (m.DeleteOffsets, {}, ErrorCode.INVALID_REQUEST, "topic is missing"),
]


@pytest.mark.parametrize(("request_type", "document", "code", "detail"), WRONG)
def test_a_wrong_document_is_refused_with_its_place(
    request_type: type[m.Request], document: dict[str, Any], code: ErrorCode, detail: str
) -> None:
    rejected = rejection_of(request_type, document)
    assert (rejected.code, rejected.detail[: len(detail)]) == (code, detail)


@pytest.mark.parametrize(
    "token", ["ü", "%%%", "bm90IGEgbmFtZQ==", "AA==", "A"], ids=["not-ascii", "bad", "space", "nul", "cut"]
)
def test_a_page_token_that_no_page_gave_is_refused(token: str) -> None:
    with pytest.raises(RejectedRequest, match="page_token must be a token"):
        read_query(m.ListTopics, {"namespace": "default"}, [("page_token", token)], LIMITS)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ({"namespace": "a:b", "group_id": "g"}, ErrorCode.INVALID_REQUEST),
        ({"namespace": "a", "group_id": "g g"}, ErrorCode.INVALID_GROUP_ID),
        ({"namespace": "a", "group_id": "g\n"}, ErrorCode.INVALID_GROUP_ID),
        ({"namespace": "a", "group_id": "g" * 250}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_a_path_that_names_no_group_is_refused(path: dict[str, str], code: ErrorCode) -> None:
    with pytest.raises(RejectedRequest) as caught:
        read_query(m.DescribeGroup, path, (), LIMITS)
    assert caught.value.code is code


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"a": ' + b"9" * 5_000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": "\n"}',
        b"{} {}",
    ],
    ids=lambda body: repr(body[:12]),
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RejectedRequest) as caught:
        parse_document(body)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("start", ["", '"generation_id": null, '], ids=["without-null", "with-null"])
def test_nothing_is_parsed_behind_a_value_that_is_refused(start: str) -> None:
    body = f'{{{start}"offsets": [{{"topic": 5}}, …'.encode()
    with pytest.raises(RejectedRequest, match=r"offsets\[0\].topic must be a string$"):
        read_request(m.CommitOffsets, GROUP, body, LIMITS)


def test_an_unknown_name_as_long_as_a_message_does_not_hide_its_place() -> None:
    document = {"protocol_type": "worker", "protocols": [{"x` - at `$." * 1_000: 1}]}
    assert rejection_of(m.JoinGroup, document).detail.startswith("unknown field 'protocols[0].x` - at")


def test_limits_of_the_server_are_the_ones_that_count() -> None:
    document = {"protocol_type": "worker", "protocols": [{"name": "a", "metadata": "QUJD"}]}
    with pytest.raises(RejectedRequest, match="at most 2 bytes"):
        read(m.JoinGroup, document, replace(LIMITS, metadata_max_bytes=2))
    assert read(m.JoinGroup, document, replace(LIMITS, metadata_max_bytes=3)).protocols[0].metadata == b"ABC"


def test_the_codecs_bring_nothing_of_a_server_along() -> None:
    program = (
        "import sys, rota.protocol.wire.routes, rota.protocol.wire.replies, rota.protocol.wire.problems\n"
        "heavy = {'fastapi', 'pydantic', 'starlette', 'asyncio', 'sqlalchemy'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_absent_fields_are_not_sent_to_older_servers(request_: m.Request) -> None:
    def empty_names(value: Any) -> list[str]:
        if isinstance(value, list):
            return [name for item in value for name in empty_names(item)]
        if not isinstance(value, dict):
            return []
        empty = [name for name, item in value.items() if item is False or item in (None, "", [], {})]
        return empty + empty_names([*value.values()])

    target = encode_request(request_)

    assert [name for name in empty_names(target.body) if name != "assignment"] == []
    assert [name for name, text in target.query if text in ("", "None")] == []


def test_a_false_or_empty_field_that_has_another_default_is_sent() -> None:
    join = encode_request(m.JoinGroup("default", "g", "w", (m.Protocol("p"),), 10_000, 20_000, wait_ms=0)).body
    assert join == {
        "protocol_type": "w",
        "protocols": [{"name": "p"}],
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "wait_ms": 0,
    }


# --- numbers of 64 bits -----------------------------------------------------------------------------------

ODD_OFFSETS = (
    2**53,
    2**63,
    -1,
    1.0,
    1e3,
    True,
    "",
    "01",
    "00",
    "+1",
    "-1",
    "1e3",
    "1.0",
    " 1",
    "1_0",
    "\u0663",
    "1\n",
    str(2**63),
    "9" * 30,
)


def committed(offset: object) -> int:
    document = {"offsets": [{"topic": "t", "partition": 0, "offset": offset}]}
    read_offset: int = read(m.CommitOffsets, document).offsets[0].offset
    return read_offset


@pytest.mark.parametrize("offset", [0, 1, 2**53 - 1, 2**53, 1_795_372_229_057_000_000, 2**63 - 1])
def test_an_offset_above_2_to_the_53_is_a_string_of_digits(offset: int) -> None:
    commit = m.CommitOffsets("default", "g", 1, (m.OffsetToCommit("t", 0, offset),))
    body = encode_request(commit).body
    assert body is not None
    written = body["offsets"][0]["offset"]

    assert type(written) is (int if offset < 2**53 else str)
    assert committed(written) == committed(str(offset)) == offset


@pytest.mark.parametrize("offset", ODD_OFFSETS)
def test_what_is_no_number_of_64_bits_is_refused(offset: object) -> None:
    with pytest.raises(RejectedRequest) as refused:
        committed(offset)

    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_number_that_doubles_would_change_is_refused() -> None:
    with pytest.raises(RejectedRequest, match="must be a string of digits above 9007199254740991"):
        committed(2**53)
