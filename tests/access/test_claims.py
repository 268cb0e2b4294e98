"""From an issuer's claims to the caller's identity."""

from __future__ import annotations

from typing import Any

import pytest

from rota.core.access.binding import check_binding
from rota.core.access.document import Issuer
from rota.core.access.rules import Pod
from rota.protocol import messages as m
from rota.server.access.authenticator import Refused
from rota.server.access.issuers import caller_of_claims, caller_of_review

OIDC = Issuer("https://login", ("rota",))
KUBERNETES = Issuer("https://cluster", ("rota",), kind="kubernetes")
POD = Pod("team-a", "worker-0", "8c1f")
MEMBER_ID = "worker-0-6f1c7e0a-1d4b-4c59-9a0e-0a4f5b1c2d3e"
OTHERS_ID = "worker-0-x-6f1c7e0a-1d4b-4c59-9a0e-0a4f5b1c2d3e"


def test_an_oidc_token_names_a_user_and_their_groups() -> None:
    caller = caller_of_claims({"sub": "alice", "groups": ["ops", "dev"], "exp": 12}, OIDC)

    assert (caller.names(), caller.expires_at_ms) == (
        ("user:alice", "group:ops", "group:dev"),
        12_000 + OIDC.leeway_s * 1_000,
    )


@pytest.mark.parametrize("subject", ["al\0ice", "al\ud800ice", "al\nice"])
def test_a_subject_that_cannot_be_printed_is_rejected(subject: str) -> None:
    with pytest.raises(Refused, match="cannot be printed"):
        caller_of_claims({"sub": subject, "exp": 12}, OIDC)


def test_a_service_account_token_names_its_account_and_its_pod() -> None:
    claims = {
        "kubernetes.io": {
            "namespace": "team-a",
            "serviceaccount": {"name": "worker", "uid": "1"},
            "pod": {"name": "worker-0", "uid": "8c1f"},
        }
    }

    caller = caller_of_claims(claims, KUBERNETES)

    assert (caller.subject, caller.pod) == ("sa:team-a/worker", POD)


@pytest.mark.parametrize("exp", [1_000, 1_000.9, "1000"])
def test_a_caller_is_proven_until_its_token_expires(exp: float | str) -> None:
    """As the check of the token itself reads it."""
    assert caller_of_claims({"sub": "a", "exp": exp}, OIDC).expires_at_ms == (1_000 + OIDC.leeway_s) * 1_000


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"authenticated": False, "error": "token expired"}, "does not accept the token: token expired"),
        ({"audiences": ["else"]}, "for another audience"),
        ({"user": {"username": "system:node:n1"}}, "no service account's"),
        ({"user": {}}, "no service account's"),
    ],
)
def test_a_review_that_says_no_or_something_else_lets_nobody_in(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        caller_of_review(a_review(**change), KUBERNETES)


@pytest.mark.parametrize("claims", [{}, {"sub": ""}, {"sub": 7}, {"sub": "a", "groups": [1]}])
def test_claims_that_name_nobody_are_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        caller_of_claims(claims, OIDC)


@pytest.mark.parametrize(
    ("request_", "is_its_own"),
    [
        (m.JoinGroup("team-a", "g", "t", (), 1, 1, client_id="worker-0"), True),
        (m.JoinGroup("team-a", "g", "t", (), 1, 1, client_id="8c1f"), True),
        (m.JoinGroup("team-a", "g", "t", (), 1, 1, client_id="worker-1"), False),
        (m.JoinGroup("team-a", "g", "t", (), 1, 1), False),
        (m.JoinGroup("team-a", "g", "t", (), 1, 1, group_instance_id="worker-0:2"), True),
        (m.JoinGroup("team-a", "g", "t", (), 1, 1, group_instance_id="worker-1"), False),
        (m.JoinGroup("team-a", "g", "t", (), 1, 1, member_id=MEMBER_ID), True),
        (m.SyncGroup("team-a", "g", OTHERS_ID, 1), False),
        (m.Heartbeat("team-a", "g", MEMBER_ID, 1), True),
        (m.Heartbeat("team-a", "g", OTHERS_ID, 1), False),
        (m.HeartbeatMany("team-a", "g", (m.MemberHeartbeat(MEMBER_ID, 1), m.MemberHeartbeat(OTHERS_ID, 1))), False),
        (m.LeaveGroup("team-a", "g", (m.LeavingMember(group_instance_id="worker-1"),)), False),
        (m.LeaveGroup("team-a", "g", (m.LeavingMember(OTHERS_ID),), by_admin=True), True),
        (m.CommitOffsets("team-a", "g", 1, (), member_id=OTHERS_ID), False),
        (m.VerifyFence("team-a", "g", 1, OTHERS_ID, sign=True), False),
        (m.DescribeGroup("n", "g"), True),
    ],
)
def test_a_pod_is_only_the_members_that_bear_its_name(request_: m.Request, is_its_own: bool) -> None:
    assert (check_binding(request_, POD) == "") is is_its_own


def a_review(**change: Any) -> dict[str, Any]:
    extra = {
        "authentication.kubernetes.io/pod-name": ["worker-0"],
        "authentication.kubernetes.io/pod-uid": ["8c1f"],
    }
    user = {"username": "system:serviceaccount:team-a:worker", "extra": extra}
    return {"authenticated": True, "audiences": ["rota"], "user": user, **change}
