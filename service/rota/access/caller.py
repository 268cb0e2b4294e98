"""Who calls, as far as it is proven, and where from."""

from __future__ import annotations

from dataclasses import dataclass

from rota.access.rules import Rule

ANONYMOUS_SUBJECT = "anonymous"


@dataclass(frozen=True, slots=True)
class Pod:
    """The Kubernetes pod that a token was issued to."""

    namespace: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """One subject, such as `token:ci`, `sa:team-a/worker`, `spiffe://…`, `cn:worker`, `user:alice`.

    `grants` are rules that the credential itself carries (a token's scope). `method` says how the subject was proven.
    """

    subject: str
    method: str
    groups: tuple[str, ...] = ()
    grants: tuple[Rule, ...] = ()
    pod: Pod | None = None
    expires_at_ms: int | None = None

    @property
    def is_anonymous(self) -> bool:
        return self.subject == ANONYMOUS_SUBJECT

    def names(self) -> tuple[str, ...]:
        """All that a rule's `subjects` can mean it by."""
        return (self.subject, *(f"group:{group}" for group in self.groups))


ANONYMOUS = Caller(ANONYMOUS_SUBJECT, "none")
