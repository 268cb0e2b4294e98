"""Callers are kept apart: by the kind of each name in a certificate, by issuer, and by a pod's namespace."""

from __future__ import annotations

import itertools
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from rota.core.access.binding import check_binding, wrong_with_pod
from rota.core.access.certificates import PeerCertificate, caller_of_certificate, read_certificate
from rota.core.access.document import Issuer
from rota.core.access.rules import Caller, Pod
from rota.protocol import messages as m
from rota.server.access.issuers import caller_of_claims, caller_of_review
from rota.server.grpc.calls import ACCESS
from rota.v1.access_pb2 import WhoAmIResponse
from tests.access.certificates import Authority, Certificate
from tests.access.guarded import NAMESPACE, Service, a_join_body, bearer
from tests.access.issuers import service_account

LOW, ADMIN = "spiffe://td/low", "spiffe://td/admin"
URIS = [
    (),
    (LOW,),
    (LOW, ADMIN),
    (LOW, "https://td/low"),
    ("https://td/low",),
    ("SPIFFE://td/low",),
    ("spiffe://td/../x",),
]
OTHERS: dict[str, list[x509.GeneralName]] = {
    "none": [],
    "dns": [x509.DNSName(ADMIN)],
    "e-mail": [x509.RFC822Name._init_without_validation(ADMIN)],
}
COMMON_NAMES = [(), ("cn1",), (ADMIN,), ("cn1", "cn2")]
CASES = list(itertools.product(URIS, OTHERS, COMMON_NAMES))


def expected(uris: tuple[str, ...], common_names: tuple[str, ...]) -> str:
    """Other names than these count for nothing."""
    if uris == (LOW,):
        return LOW
    says_spiffe = any(uri.lower().startswith("spiffe") for uri in uris)
    return f"cn:{common_names[0]}" if len(common_names) == 1 and not says_spiffe else "anonymous"


def issued(authority: Authority, uris: tuple[str, ...], others: str, common_names: tuple[str, ...]) -> Certificate:
    names = [*OTHERS[others], *map(x509.UniformResourceIdentifier, uris)]
    return authority.issue_for("client", names, common_names)


GUARDED_BY = "bind_members_to_pods = true\nrequire_pods = true\n"


@pytest.mark.thorough
@pytest.mark.asyncio(loop_scope="module")
async def test_both_transports_take_a_certificate_for_the_same_caller(service: Service) -> None:
    over_http, over_grpc = {}, {}
    for case in CASES:
        async with service.as_certificate(issued(service.secrets.authority, *case)) as (http, channel):
            over_http[case] = (await http.get("/v1/whoami")).json()["subject"]
            who: Any = channel.unary_unary(f"/{ACCESS}/WhoAmI")
            over_grpc[case] = WhoAmIResponse.FromString(await who(b"")).subject

    wanted = {case: expected(case[0], case[2]) for case in CASES}
    assert over_http == wanted
    assert over_grpc == wanted


def test_every_part_of_a_certificate_is_read_or_rejected(tmp_path: Path) -> None:
    """Whatever byte is changed, or missing at the end, nothing but a ValueError comes of it."""
    der = ssl.PEM_cert_to_DER_cert(issued(Authority(tmp_path), (LOW,), "dns", ("cn1",)).cert.read_text())
    broken = [der[:at] for at in range(len(der))]
    broken += [der[:at] + bytes([value]) + der[at + 1 :] for at in range(len(der)) for value in (0x00, 0x80, 0xFF)]

    for each in broken:
        try:
            read_certificate(each)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("uri", "is_one"),
    [
        ("spiffe://td/a/b.c_d-e", True),
        ("spiffe://td", False),
        ("spiffe://td/", False),
        ("spiffe://td//a", False),
        ("spiffe://TD/a", False),
        ("spiffe://td/a?b", False),
        ("spiffe://td/a%2fb", False),
        ("spiffe://user@td/a", False),
        ("spiffe://td/.../a", True),
        ("spiffe://td/" + "a" * 2048, False),
    ],
)
def test_a_spiffe_id_is_one_by_its_standard(uri: str, is_one: bool) -> None:
    assert (caller_of_certificate(PeerCertificate((uri,), ("cn",), 1)) is not None) is is_one


@pytest.mark.parametrize("prefix", ["", "ci", "prod"])
def test_users_groups_and_accounts_bear_their_issuers_prefix(prefix: str) -> None:
    oidc = Issuer("https://a", ("rota",), prefix=prefix)
    kubernetes = Issuer("https://b", ("rota",), kind="kubernetes", prefix=prefix)
    status = {"user": {"username": "system:serviceaccount:n:a"}, "authenticated": True, "audiences": ["rota"]}
    front = f"{prefix}:" if prefix else ""

    user = caller_of_claims({"sub": "al", "groups": ["sre"]}, oidc)
    account = caller_of_claims(service_account("n", "a", "p"), kubernetes)

    assert user.names() == (f"{front}user:al", f"{front}group:sre")
    assert account.names() == caller_of_review(status, kubernetes).names() == (f"{front}sa:n/a",)
    assert account.pod == Pod("n", "p", "uid-of-p", cluster=prefix)


PODS = [
    Pod(namespace, name, uid, cluster)
    for cluster in ("", "team-a", "corp")
    for namespace in ("team-a", "team-b", "corp")
    for name, uid in (
        ("w-0", f"{cluster}{namespace}-1"),
        ("w-0.x", f"{cluster}{namespace}-2"),
        ("team-a.w-0", f"{cluster}{namespace}-3"),
        ("6f1c7e0a-1d4b-4c59-9a0e-0a4f5b1c2d3e", f"{cluster}{namespace}-4"),
    )
] + [Pod("team-c", "w-1", "6f1c7e0a-1d4b-4c59-9a0e-0a4f5b1c2d3e")]


def test_no_two_pods_may_have_the_same_member_identity() -> None:
    """All names that one of these pods could try, in namespaces of Rota that are called like theirs, and another."""
    names = {name for pod in PODS for name in (pod.name, pod.uid, f"{pod.namespace}.{pod.name}")}
    identities = {f"{front}{name}" for name in names for front in ("", "corp_", "team-a_", "corp.", "team-a.")}
    for namespace, identity in itertools.product(("team-a", "team-b", "corp", "default"), identities):
        for tried in (identity, f"{identity}:2"):
            joins = m.JoinGroup(namespace, "g", "t", (), 1, 1, client_id=tried)

            owners = [pod for pod in PODS if not check_binding(joins, pod)]

            assert len(owners) <= 1, (namespace, tried, owners)
    for pod in PODS:
        full = f"{pod.cluster}_" * bool(pod.cluster) + f"{pod.namespace}.{pod.name}"
        assert not check_binding(m.JoinGroup("default", "g", "t", (), 1, 1, group_instance_id=full), pod)


ACCOUNT = Caller("sa:team-a/worker", "kubernetes")


@pytest.mark.parametrize(
    ("request_", "acts_for_a_member"),
    [
        (m.JoinGroup("n", "g", "t", (), 1, 1), True),
        (m.SyncGroup("n", "g", "x", 1), True),
        (m.Heartbeat("n", "g", "x", 1), True),
        (m.HeartbeatMany("n", "g", (m.MemberHeartbeat("x", 1),)), True),
        (m.LeaveGroup("n", "g", (m.LeavingMember("x"),)), True),
        (m.LeaveGroup("n", "g", (m.LeavingMember("x"),), by_admin=True), False),
        (m.CommitOffsets("n", "g", 1, (), member_id="x"), True),
        (m.CommitOffsets("n", "g", -1, ()), False),
        (m.VerifyFence("n", "g", 1, "x", sign=True), True),
        (m.VerifyFence("n", "g", 1, "x"), False),
        (m.DescribeGroup("n", "g"), False),
    ],
)
def test_members_need_a_token_that_names_a_pod(request_: m.Request, acts_for_a_member: bool) -> None:
    assert bool(wrong_with_pod(request_, ACCOUNT, requires_pods=True)) is acts_for_a_member
    assert not wrong_with_pod(request_, ACCOUNT, requires_pods=False)
    assert not wrong_with_pod(request_, Caller("token:w", "token"), requires_pods=True)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_token_without_a_pod_joins_nowhere_but_looks(service: Service) -> None:
    without = bearer(service.secrets.cluster.token(**service_account(NAMESPACE, "worker")))
    path = f"/v1/namespaces/{NAMESPACE}/groups"

    joined = await service.http.post(f"{path}/g/join", json=a_join_body("w-0"), headers=without)
    listed = await service.http.get(path, headers=without)

    assert (joined.status_code, joined.json()["code"]) == (403, "GROUP_AUTHORIZATION_FAILED")
    assert "the token names no pod" in joined.json()["detail"]
    assert listed.status_code == 200
