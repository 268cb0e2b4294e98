"""Rules: subjects × namespaces × groups or topics × actions. Denying wins, and what no rule allows is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta, Struct

from rota.protocol.calls import DESCRIBE_GROUP, Action, Kind, Need, need_of
from rota.protocol.ids import NAME_PATTERN, NAMESPACE_PATTERN
from rota.protocol.messages import Request

ROLES: Mapping[str, frozenset[Action]] = MappingProxyType(
    {
        "viewer": frozenset({Action.DESCRIBE}),
        "member": frozenset({Action.DESCRIBE, Action.JOIN, Action.COMMIT}),
        "operator": frozenset({Action.DESCRIBE, Action.JOIN, Action.COMMIT, Action.ADMINISTER}),
        "admin": frozenset(Action),
    }
)
"""Names for sets of actions, to be used wherever actions are listed."""


def role_of(actions: Collection[str]) -> str:
    """The role that has these actions and no others; empty if none does."""
    return next((role for role, its in ROLES.items() if its == set(actions)), "")


@dataclass(frozen=True, slots=True)
class Resource:
    """The target of an action. Lists have no name, the server has no namespace either."""

    kind: Kind
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.SERVER:
            return "the server"
        if self.kind in (Kind.GROUPS, Kind.TOPICS):
            return f"the {self.kind} of namespace {self.namespace}"
        return f"{self.kind} {self.namespace}/{self.name}"


WATCH = DESCRIBE_GROUP
LOCATE = DESCRIBE_GROUP
READ_JOURNAL = Need(Action.JOURNAL, Kind.SERVER)
SCRAPE = Need(Action.METRICS, Kind.SERVER)


def is_administrative(request: Request) -> bool:
    """Return whether the request is recorded in the audit trail."""
    return need_of(request).action is Action.ADMINISTER


ANY = "*"


class Effect(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


Text = Annotated[str, Meta(min_length=1)]
Texts = Annotated[tuple[Text, ...], Meta(min_length=1)]
_Namespaces = tuple[Annotated[str, Meta(pattern=rf"^(\*|{NAMESPACE_PATTERN}\*?)\Z")], ...]
_Names = tuple[Annotated[str, Meta(pattern=rf"^(\*|{NAME_PATTERN}\*?)\Z")], ...]


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """One rule: it allows or denies.

    Patterns are exact, or end with `*`, which stands for any rest: no name can contain one. The subject `*` is
    every authenticated caller; `anonymous` is any other.
    """

    name: Text
    subjects: Texts
    actions: Annotated[frozenset[Action], Meta(min_length=1)]
    namespaces: _Namespaces = (ANY,)
    groups: _Names = (ANY,)
    topics: _Names = (ANY,)
    effect: Effect = Effect.ALLOW

    def is_about(self, action: Action, resource: Resource) -> bool:
        """Whether it says anything about this action there.

        A rule about some namespaces, groups or topics says nothing of the server. To deny, lists must be meant as a
        whole, too.
        """
        if action not in self.actions:
            return False
        if resource.kind is Kind.SERVER:
            return ANY in self.namespaces and ANY in self.groups and ANY in self.topics
        if not matches(self.namespaces, resource.namespace):
            return False
        match resource.kind:
            case Kind.GROUP:
                return matches(self.groups, resource.name)
            case Kind.TOPIC:
                return matches(self.topics, resource.name)
            case Kind.GROUPS:
                return self._lists(self.groups)
            case _:
                return self._lists(self.topics)

    def _lists(self, patterns: tuple[str, ...]) -> bool:
        """A caller that may read one group may list groups; the list has those that it may read."""
        return ANY in patterns if self.effect is Effect.DENY else bool(patterns)


ANONYMOUS_SUBJECT = "anonymous"
RESERVED = frozenset({"user", "group", "sa", "token", "cn", "spiffe", "shell", ANONYMOUS_SUBJECT})
"""Beginnings of callers' names without an issuer's prefix: so none of these is a prefix."""
KUBERNETES, CERTIFICATE = "kubernetes", "certificate"
"""The `method` of service accounts, and of callers that a certificate names."""


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
        """The names by which a rule's `subjects` can mean this caller."""
        return (self.subject, *(name_by(self.issuer, "group", group) for group in self.groups))


def name_by(issuer: str, kind: str, name: str) -> str:
    """The name that rules have for what an issuer names: `user:alice`, or `corp:user:alice` with the prefix `corp`.

    Kinds and prefixes have no colon, and no prefix is a kind, so two issuers with different prefixes share no name.
    """
    return f"{issuer}:{kind}:{name}" if issuer else f"{kind}:{name}"


def issuer_in(subject: str) -> str:
    """The issuer's prefix in a subject; empty if it has none."""
    first, colon, _ = subject.partition(":")
    return first if colon and first not in RESERVED else ""


ANONYMOUS = Caller(ANONYMOUS_SUBJECT, "none")


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome, and the rule that decided it; empty if no rule did."""

    allowed: bool
    rule: str
    detail: str


def decide(rules: Sequence[Rule], caller: Caller, action: Action, resource: Resource) -> Decision:
    """Decide whether the caller may do this. The detail names the rule, or says that there is none."""
    asked = f"{caller.subject} may {{}}{action} {resource}"
    about = [rule for rule in rules_for(rules, caller) if rule.is_about(action, resource)]
    for rule in about:
        if rule.effect is Effect.DENY:
            return Decision(False, rule.name, f"{asked.format('not ')}: rule {rule.name!r} denies it")
    for rule in about:
        return Decision(True, rule.name, f"{asked.format('')}: rule {rule.name!r} allows it")
    return Decision(False, "", f"{asked.format('not ')}: no rule allows it")


def may_ever(rules: Iterable[Rule], caller: Caller, actions: Collection[Action]) -> bool:
    """Whether some rule allows the caller one of these actions anywhere. Where none does, no request can succeed."""
    return any(
        rule.effect is Effect.ALLOW and not rule.actions.isdisjoint(actions) for rule in rules_for(rules, caller)
    )


def rules_for(rules: Iterable[Rule], caller: Caller) -> list[Rule]:
    """The rules about the caller, and those of its credential."""
    names = caller.names()
    return [*(rule for rule in rules if _is_for(rule, caller, names)), *caller.grants]


def _is_for(rule: Rule, caller: Caller, names: tuple[str, ...]) -> bool:
    if caller.is_anonymous:
        # A pattern that matches all callers was meant for authenticated ones.
        return caller.subject in rule.subjects
    return any(matches(rule.subjects, name) for name in names)


def matches(patterns: Iterable[str], name: str) -> bool:
    """Whether one of the patterns stands for the name."""
    return any(name.startswith(pattern[:-1]) if pattern.endswith(ANY) else name == pattern for pattern in patterns)
