"""The table from error code to status: complete, and as protocol.md §6 says."""

from __future__ import annotations

from typing import Any

import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from rota.protocol.errors import ErrorCode
from rota.protocol.wire.problems import MAX_RETRY_AFTER_MS, Problem, decode_problem, problem_document
from rota.protocol.wire.rpc_status import DOMAIN, problem_of, rpc_status
from rota.protocol.wire.status import STATUS, Remedy

GRPC_NAMES = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNAVAILABLE",
    "UNAUTHENTICATED",
}

EXPECTED = {
    ErrorCode.NONE: (200, "OK"),
    ErrorCode.MEMBER_ID_REQUIRED: (428, "FAILED_PRECONDITION"),
    ErrorCode.REBALANCE_IN_PROGRESS: (409, "ABORTED"),
    ErrorCode.ASSIGNMENT_FAILED: (409, "ABORTED"),
    ErrorCode.ILLEGAL_GENERATION: (412, "FAILED_PRECONDITION"),
    ErrorCode.FENCED_INSTANCE_ID: (412, "FAILED_PRECONDITION"),
    ErrorCode.UNKNOWN_MEMBER_ID: (404, "NOT_FOUND"),
    ErrorCode.GROUP_ID_NOT_FOUND: (404, "NOT_FOUND"),
    ErrorCode.GROUP_DELETED: (410, "NOT_FOUND"),
    ErrorCode.UNKNOWN_TOPIC: (404, "NOT_FOUND"),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (409, "FAILED_PRECONDITION"),
    ErrorCode.NON_EMPTY_GROUP: (409, "FAILED_PRECONDITION"),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (409, "FAILED_PRECONDITION"),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (429, "RESOURCE_EXHAUSTED"),
    ErrorCode.THROTTLED: (429, "RESOURCE_EXHAUSTED"),
    ErrorCode.NOT_COORDINATOR: (421, "UNAVAILABLE"),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (503, "UNAVAILABLE"),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (503, "UNAVAILABLE"),
    ErrorCode.INVALID_GROUP_ID: (400, "INVALID_ARGUMENT"),
    ErrorCode.INVALID_SESSION_TIMEOUT: (400, "INVALID_ARGUMENT"),
    ErrorCode.INVALID_PARTITIONS: (400, "INVALID_ARGUMENT"),
    ErrorCode.INVALID_REQUEST: (400, "INVALID_ARGUMENT"),
    ErrorCode.PAYLOAD_TOO_LARGE: (413, "INVALID_ARGUMENT"),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (413, "INVALID_ARGUMENT"),
    ErrorCode.REVISION_OUT_OF_RANGE: (410, "OUT_OF_RANGE"),
    ErrorCode.UNAUTHENTICATED: (401, "UNAUTHENTICATED"),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (403, "PERMISSION_DENIED"),
}


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_the_status_of_the_protocol_page(code: ErrorCode) -> None:
    assert (STATUS[code].http, STATUS[code].grpc) == EXPECTED[code]
    assert STATUS[code].grpc in GRPC_NAMES


@pytest.mark.parametrize("code", ErrorCode)
def test_retriable_and_the_remedy_never_contradict_each_other(code: ErrorCode) -> None:
    status = STATUS[code]
    assert status.retriable == (status.remedy in (Remedy.RETRY, Remedy.RETRY_AT_OWNER))
    assert (status.retry_after_s is not None) == (status.remedy is Remedy.RETRY)
    assert (status.http in (429, 503)) == (status.remedy is Remedy.RETRY)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
def test_a_problem_document_survives_the_way_to_the_client(code: ErrorCode) -> None:
    document = problem_document(code, "why", member_id="m-1", revision=7, epoch=3)
    problem = decode_problem(STATUS[code].http, document)
    assert problem is not None
    assert (problem.code, problem.detail, problem.member_id) == (code, "why", "m-1")
    assert (problem.revision, problem.epoch) == (7, 3)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
def test_an_rpc_status_survives_the_way_to_the_client(code: ErrorCode) -> None:
    problem = problem_of(rpc_status(code, "why", member_id="m-1", revision=7, epoch=3))
    assert problem == Problem(code, "why", "m-1", 7, 3, (STATUS[code].retry_after_s or 0) * 1_000)


def test_the_first_revision_reaches_the_client() -> None:
    code = ErrorCode.REVISION_OUT_OF_RANGE
    over_http = decode_problem(410, problem_document(code, "pruned", first_revision=32))
    over_grpc = problem_of(rpc_status(code, "pruned", first_revision=32))

    assert over_http == over_grpc == Problem(code, "pruned", first_revision=32)
    assert decode_problem(410, problem_document(code, "pruned", first_revision="32")) is None


@pytest.mark.parametrize("last_revision", [0, 7])
def test_a_journals_end_is_the_same_over_both_transports(last_revision: int) -> None:
    code = ErrorCode.REVISION_OUT_OF_RANGE
    end: dict[str, Any] = {"first_revision": 1, "last_revision": last_revision, "incarnation": "i-1"}
    over_http = decode_problem(410, problem_document(code, "ahead", **end))
    over_grpc = problem_of(rpc_status(code, "ahead", **end))

    assert over_http == over_grpc == Problem(code, "ahead", **end)


@pytest.mark.parametrize("http_status", [302, 400, 401, 403, 404, 408, 413, 429, 502, 504])
@pytest.mark.parametrize(
    "document",
    [
        {},
        {"code": "INVALID_REQUEST"},
        {"code": "INVALID_REQUEST", "type": "about:blank"},
        {"code": "INVALID_REQUEST", "type": "urn:rota:error:UNAUTHENTICATED"},
        {"code": "A_CODE_OF_TOMORROW", "type": "urn:rota:error:A_CODE_OF_TOMORROW"},
        {"code": "NONE", "type": "urn:rota:error:NONE"},
        {"code": 404, "detail": 5},
    ],
)
def test_an_answer_of_another_program_is_no_problem_of_rotas(http_status: int, document: dict[str, object]) -> None:
    assert decode_problem(http_status, document) is None


def test_a_code_that_only_rota_has_needs_no_type() -> None:
    problem = decode_problem(404, {"code": "UNKNOWN_MEMBER_ID", "detail": "no such member"})
    assert problem is not None
    assert problem.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert decode_problem(404, {"code": "UNKNOWN_MEMBER_ID", "type": "https://example.com/gone"}) is None


def test_a_status_with_an_unknown_code_is_no_problem_of_rotas() -> None:
    for reason in ("A_CODE_OF_TOMORROW", "NONE", ""):
        status = Status(message="why")
        status.details.add().Pack(ErrorInfo(reason=reason, domain=DOMAIN))
        assert problem_of(status) is None


@pytest.mark.parametrize(
    ("header", "expected_ms"),
    [
        ("7", 7_000),
        ("007", 7_000),
        ("0", 0),
        ("", 0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 0),
        ("-1", 0),
        ("1.5", 0),
        ("²", 0),
        ("86400", MAX_RETRY_AFTER_MS),
        ("9" * 5_000, MAX_RETRY_AFTER_MS),
        ("0" * 5_000, 0),
    ],
)
def test_a_requested_wait_is_read_from_its_header_within_bounds(header: str, expected_ms: int) -> None:
    problem = decode_problem(429, problem_document(ErrorCode.THROTTLED, "slower"), header)
    assert problem is not None
    assert problem.retry_after_ms == expected_ms


@pytest.mark.parametrize(("seconds", "expected_ms"), [(7, 7_000), (86_400, MAX_RETRY_AFTER_MS), (-5, 0)])
def test_a_requested_wait_in_an_rpc_status_is_bounded_too(seconds: int, expected_ms: int) -> None:
    status, retry = rpc_status(ErrorCode.REBALANCE_IN_PROGRESS, "wait"), RetryInfo()
    retry.retry_delay.seconds = seconds
    status.details.add().Pack(retry)
    problem = problem_of(status)
    assert problem is not None
    assert problem.retry_after_ms == expected_ms
