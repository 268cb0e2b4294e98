"""The caller that a token names: OIDC claims, Kubernetes service accounts and reviews."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rota.access.rules import KUBERNETES, Caller, Pod, name_by

IssuerKind = Literal["oidc", "kubernetes"]
USER, GROUP, SERVICE_ACCOUNT = "user", "group", "sa"
_KINDS_OF: Mapping[IssuerKind, frozenset[str]] = {
    "oidc": frozenset({USER, GROUP}),
    "kubernetes": frozenset({SERVICE_ACCOUNT}),
}
_SERVICE_ACCOUNT = "system:serviceaccount:"
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA")
"""Those with a public key. With a shared secret every verifier of tokens could make them, too."""


class UnusableClaims(ValueError):
    """The token is genuine, but does not identify the caller."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """A trusted issuer of tokens.

    `jwks` is a file or a URL with its keys; where it is empty, OIDC discovery finds them. `review` is the
    URL of a Kubernetes API server that is asked about each token instead. `bearer_file` and `ca_file` are for asking.
    """

    issuer: str
    audiences: tuple[str, ...]
    kind: IssuerKind = "oidc"
    jwks: str = ""
    review: str = ""
    ca_file: str = ""
    bearer_file: str = ""
    prefix: str = ""
    """Stands before all names that this issuer gives: `corp:user:alice`, `corp:group:sre`, `corp:sa:team-a/worker`."""
    subject_claim: str = "sub"
    groups_claim: str = "groups"
    algorithms: tuple[str, ...] = ALGORITHMS
    leeway_s: int = 30

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of names that it gives. Two issuers with a kind in common have different prefixes."""
        return _KINDS_OF[self.kind]

    def pod(self, namespace: str, name: str, uid: str) -> Pod:
        """A pod of this issuer's cluster."""
        return Pod(namespace, name, uid, cluster=self.prefix)


def caller_of_claims(claims: Mapping[str, Any], issuer: Issuer) -> Caller:
    """The caller that a verified token identifies; raises `UnusableClaims`."""
    expires_at_ms = end_of_claims(claims, issuer)
    if issuer.kind == "kubernetes":
        return _service_account(claims, issuer, expires_at_ms)
    subject = _text(claims, issuer.subject_claim)
    groups = claims.get(issuer.groups_claim) or ()
    if isinstance(groups, str):
        groups = groups.split()
    if not isinstance(groups, Sequence) or not all(isinstance(group, str) for group in groups):
        raise UnusableClaims(f"the claim {issuer.groups_claim!r} is no list of names")
    named = name_by(issuer.prefix, USER, subject)
    return Caller(named, "jwt", tuple(groups), expires_at_ms=expires_at_ms, issuer=issuer.prefix)


def caller_of_review(status: Mapping[str, Any], issuer: Issuer, *, expires_at_ms: int | None = None) -> Caller:
    """The caller that a Kubernetes TokenReview identifies; raises `UnusableClaims` if it rejects the token.

    A review does not return the token's expiry, but once it accepts the token, the token's own claim is valid.
    """
    if status.get("authenticated") is not True:
        raise UnusableClaims(f"the API server does not accept the token: {status.get('error') or 'no reason given'}")
    audiences = status.get("audiences") or ()
    if not set(issuer.audiences) & set(audiences):
        raise UnusableClaims("the token is for another audience")
    user = status.get("user") or {}
    namespace, _, name = _text(user, "username").removeprefix(_SERVICE_ACCOUNT).partition(":")
    if not user["username"].startswith(_SERVICE_ACCOUNT) or not name:
        raise UnusableClaims("the token is no service account's")
    extra = user.get("extra") or {}
    pod_name, pod_uid = (str(next(iter(extra.get(key) or ()), "")) for key in (_POD_NAME, _POD_UID))
    pod = issuer.pod(namespace, pod_name, pod_uid) if pod_name else None
    return _of_account(issuer, namespace, name, pod, expires_at_ms)


def _service_account(claims: Mapping[str, Any], issuer: Issuer, expires_at_ms: int | None) -> Caller:
    kubernetes = claims.get("kubernetes.io")
    if not isinstance(kubernetes, Mapping):
        raise UnusableClaims("the token is no service account's")
    namespace, account = _text(kubernetes, "namespace"), _text(kubernetes.get("serviceaccount") or {}, "name")
    bound = kubernetes.get("pod")
    pod = None
    if isinstance(bound, Mapping):
        pod = issuer.pod(namespace, _text(bound, "name"), str(bound.get("uid", "")))
    return _of_account(issuer, namespace, account, pod, expires_at_ms)


def _of_account(issuer: Issuer, namespace: str, account: str, pod: Pod | None, expires_at_ms: int | None) -> Caller:
    subject = name_by(issuer.prefix, SERVICE_ACCOUNT, f"{namespace}/{account}")
    return Caller(subject, KUBERNETES, pod=pod, expires_at_ms=expires_at_ms, issuer=issuer.prefix)


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise UnusableClaims(f"the claim {name!r} is missing")
    return value


def end_of_claims(claims: Mapping[str, Any], issuer: Issuer) -> int | None:
    """Until when a token is good, in milliseconds since 1970; None where it does not say, or says no number."""
    try:
        return (int(claims["exp"]) + issuer.leeway_s) * 1000
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
