"""The caller, as far as it is proven, and its origin."""

from __future__ import annotations

from dataclasses import dataclass

from rota.access.rules import Rule

ANONYMOUS_SUBJECT = "anonymous"
RESERVED = frozenset({"user", "group", "sa", "token", "cn", "spiffe", "shell", ANONYMOUS_SUBJECT})
"""Beginnings of callers' names without an issuer's prefix: so none of these is a prefix."""
KUBERNETES = "kubernetes"
"""The `method` of service accounts."""


@dataclass(frozen=True, slots=True)
class Pod:
    """The Kubernetes pod that a token was issued to; `cluster` is the prefix of the issuer."""

    namespace: str
    name: str
    uid: str = ""
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """One subject, such as `token:ci`, `sa:team-a/worker`, `spiffe://…`, `cn:worker`, `user:alice`, `corp:user:alice`.

    `issuer` is the prefix of the issuer that named it, if it has one. `grants` are rules that the credential itself
    carries (a token's scope). `method` says how the subject was proven.
    """

    subject: str
    method: str
    groups: tuple[str, ...] = ()
    grants: tuple[Rule, ...] = ()
    pod: Pod | None = None
    expires_at_ms: int | None = None
    issuer: str = ""

    @property
    def is_service_account(self) -> bool:
        return self.method == KUBERNETES

    @property
    def is_anonymous(self) -> bool:
        return self.subject == ANONYMOUS_SUBJECT

    def names(self) -> tuple[str, ...]:
        """All that a rule's `subjects` can mean it by."""
        return (self.subject, *(name_by(self.issuer, "group", group) for group in self.groups))


def name_by(issuer: str, kind: str, name: str) -> str:
    """The name that rules have for what an issuer names: `user:alice`, or `corp:user:alice` with the prefix `corp`.

    Kinds and prefixes have no colon, and no prefix is a kind, so two issuers with different prefixes share no name.
    """
    return f"{issuer}:{kind}:{name}" if issuer else f"{kind}:{name}"


def issuer_in(subject: str) -> str:
    """The issuer's prefix in a subject; empty where it has none."""
    first, colon, _ = subject.partition(":")
    return first if colon and first not in RESERVED else ""


ANONYMOUS = Caller(ANONYMOUS_SUBJECT, "none")
