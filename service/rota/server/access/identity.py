"""Identity of the current call: set once by the transport, read by the guard in any task of the call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from rota.core.access.document import AccessDocument
from rota.core.access.rules import ANONYMOUS, CERTIFICATE, Caller, Decision, Resource, decide, may_ever
from rota.core.access.sources import source_of
from rota.protocol.calls import Action, Need
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.server.observability.logs import log_refusal

RENEWAL_S = 5.0
"""So long before its caller's proof expires a connection or stream ends in order: the next one shows the next proof."""
FRESH_S = 0.25
"""A permission is cached for this long, even if the token or the rules change: heartbeats are frequent."""
REMEMBERED = 10_000
"""Size of the per-identity cache of decisions; beyond it decisions are computed again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a call: the `Authorization` header's value, and its connection's certificate."""

    authorization: bytes = b""
    certificate: Caller | None = None


NO_CREDENTIALS = Credentials()
SEVERAL_CREDENTIALS = Credentials(b"several")
"""Two headers are none: a proxy in front of us may have looked at the other one."""


class Policy(Protocol):
    """The access file as it is now; another object each time that it has changed."""

    @property
    def document(self) -> AccessDocument: ...


class Authenticator(Protocol):
    """Authenticates callers."""

    @property
    def policy(self) -> Policy: ...

    def known(self, credentials: Credentials) -> Identity | None:
        """The identity of credentials that were looked at before, without awaiting."""

    async def identify(self, credentials: Credentials) -> Identity:
        """The caller's identity. Invalid credentials give an identity with the reason."""


class Identity:
    """A caller and its permissions. `refusal` is the reason of failed authentication; the caller is anonymous then.

    It may live as long as a stream does. So whether the proof still holds (`still_refused`) and the rules are still the
    same is checked repeatedly, and decisions are cached only until then.
    """

    __slots__ = (
        "_decided",
        "_document",
        "_fresh_until",
        "_policy",
        "_still_refused",
        "caller",
        "refusal",
        "refusal_code",
    )

    def __init__(
        self,
        caller: Caller,
        policy: Policy,
        *,
        refusal: str = "",
        refusal_code: ErrorCode = ErrorCode.UNAUTHENTICATED,
        still_refused: Callable[[], str] | None = None,
    ) -> None:
        self.caller = caller
        self.refusal = refusal
        self.refusal_code = refusal_code
        self._policy = policy
        self._still_refused = still_refused
        self._document = policy.document
        self._decided: dict[tuple[object, ...], bool] = {}
        """By a need with the namespace and name of its target, or by needs of which one must be allowed anywhere."""
        self._fresh_until = 0.0

    def proof_refused(self) -> str:
        """Why the caller is not authenticated (any more); empty while it is."""
        if self.refusal:
            return self.refusal
        expires_at_ms = self.caller.expires_at_ms
        if expires_at_ms is not None and expires_at_ms <= time.time() * 1000:
            return f"the {'certificate' if self.caller.method == CERTIFICATE else 'token'} has expired"
        return self._still_refused() if self._still_refused is not None else ""

    def look_again(self) -> None:
        """Rely on nothing that was allowed a moment ago."""
        self._fresh_until = 0.0

    def decision(self, action: Action, resource: Resource) -> Decision:
        """What the rules say, with the rule that decides."""
        return decide(self._policy.document.rules, self.caller, action, resource)

    def may(self, action: Action, resource: Resource) -> bool:
        """Whether the rules allow it."""
        return self.decision(action, resource).allowed

    def check(self, need: Need, namespace: str, name: str) -> None:
        """Raise `RejectedRequest` unless the caller may do this: UNAUTHENTICATED if it should authenticate."""
        asked = (need, namespace, name)
        now = time.monotonic()
        if now < self._fresh_until and self._decided.get(asked):
            return
        self._require_proof()
        self._fresh_until = now + FRESH_S
        if not self._decided.get(asked):
            decision = self.decision(need.action, Resource(need.kind, namespace, name))
            self._conclude(asked, decision.allowed, decision.detail)

    def check_any(self, needs: Sequence[Need], namespace: str, name: str) -> None:
        """Raise `RejectedRequest` unless the caller may do one of these, as `check` does for the first of them."""
        first = needs[0]
        for need in needs[1:]:
            if self._decided.get((first, namespace, name)):
                break
            if self.may(need.action, Resource(need.kind, namespace, name)):
                first = need
                break
        self.check(first, namespace, name)

    def check_ever(self, needs: tuple[Need, ...]) -> None:
        """Raise `RejectedRequest` if no rule allows the caller any of these anywhere."""
        self._require_proof()
        may = self._decided.get(needs)
        if not may:
            detail = f"{self.caller.subject} may {needs[0].action} nowhere: no rule allows it"
            if may is None:
                may = may_ever(self._document.rules, self.caller, [need.action for need in needs])
            self._conclude(needs, may, detail)

    def _require_proof(self) -> None:
        """Raise unless the caller is authenticated. Decisions of former rules are forgotten."""
        refusal, document = self.proof_refused(), self._policy.document
        if refusal:
            raise RejectedRequest(self.refusal_code, refusal)
        if document is not self._document:
            self._document = document
            self._decided.clear()

    def _conclude(self, asked: tuple[object, ...], allowed: bool, detail: str) -> None:
        """Remember the decision, and raise if the caller may not do this.

        Each refusal is logged once, so that a caller that asks again and again does not fill the log.
        """
        subject = self.caller.subject
        if allowed or (
            asked not in self._decided
            and log_refusal(_log, "refused", f"{subject} {source_of(ORIGIN.get())}", subject=subject, detail=detail)
        ):
            if len(self._decided) >= REMEMBERED:
                self._decided.clear()
            self._decided[asked] = allowed
        if not allowed:
            # A caller without credentials is asked for some.
            is_unknown = self.caller.is_anonymous
            code = ErrorCode.UNAUTHENTICATED if is_unknown else ErrorCode.GROUP_AUTHORIZATION_FAILED
            raise RejectedRequest(code, detail)


def unauthenticated(policy: Policy, refusal: str = "", code: ErrorCode = ErrorCode.UNAUTHENTICATED) -> Identity:
    """A caller that has proven nothing, and is refused with this code where there is a reason for that."""
    return Identity(ANONYMOUS, policy, refusal=refusal, refusal_code=code)


CURRENT: ContextVar[Identity] = ContextVar("rota_identity")
"""Set for each HTTP request, rpc and stream; tasks that these start inherit it."""
NOTE_MAX_CHARS = 1_000
NOTE: ContextVar[str] = ContextVar("rota_note", default="")
"""What an administrator wants to be kept with what they do."""
ORIGIN: ContextVar[str] = ContextVar("rota_origin", default="")
"""The address that the call comes from, past proxies that are trusted."""
