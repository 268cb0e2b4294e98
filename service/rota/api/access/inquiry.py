"""Answers callers about themselves: their identity at this server, and their permissions."""

# ruff: noqa: ARG002 — every kind of value has the same signature, though not all need the limits.
from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rota.access.actions import Action, Kind, Resource
from rota.access.rules import Decision, Rule, may_ever, rules_for
from rota.api.access.guard import Guard
from rota.api.access.identity import Identity
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.ids import NAME_PATTERN, NAMESPACE_PATTERN, check_group_id, check_namespace, check_topic
from rota.protocol.limits import Limits
from rota.wire.fields import Boolean, Integer, Schema, Text, invalid
from rota.wire.records import ListOf, ObjectShape, Property, given

Namespaces = Callable[[], Awaitable[list[str]]]
"""The namespaces that have groups or topics, by name."""
_OF_THE_SERVER = frozenset({Action.JOURNAL, Action.METRICS})
_NO_RULES = Decision(allowed=True, rule="", detail="this server has no rules: every caller may do everything")


@dataclass(frozen=True, slots=True)
class KnownRule:
    """A rule that applies to the caller. Its other subjects are not returned."""

    name: str
    effect: str
    actions: tuple[str, ...]
    namespaces: tuple[str, ...]
    groups: tuple[str, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownCaller:
    """The caller as the server knows it; `guarded` says whether that matters to it."""

    subject: str
    method: str
    groups: tuple[str, ...] = ()
    expires_at_ms: int | None = None
    guarded: bool = True
    rules: tuple[KnownRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """May I do this there? Without a namespace it is about the server, with nothing else about the list of groups."""

    action: Action
    namespace: str | None
    group_id: str | None
    topic: str | None

    @property
    def resource(self) -> Resource:
        """What the action would be done to; raises `RejectedRequest` where the question makes no sense."""
        if (self.action in _OF_THE_SERVER) is (self.namespace is not None):
            of_server = ", ".join(sorted(_OF_THE_SERVER))
            raise invalid(f"{of_server} are about the server, all other actions about a namespace")
        if self.group_id is not None and self.topic is not None:
            raise invalid("group_id and topic are two questions")
        if self.namespace is None:
            if self.group_id is not None or self.topic is not None:
                raise invalid("namespace is missing")
            return Resource(Kind.SERVER)
        if self.topic is not None:
            return Resource(Kind.TOPIC, self.namespace, self.topic)
        return Resource(Kind.GROUP if self.group_id is not None else Kind.GROUPS, self.namespace, self.group_id or "")


def known_caller(guard: Guard | None) -> KnownCaller:
    """The caller's identity; raises `RejectedRequest` for invalid credentials, so that `whoami` reports them."""
    if guard is None:
        return KnownCaller("anonymous", "none", guarded=False)
    caller = _proven(guard).caller
    rules = tuple(map(_known_rule, rules_for(guard.authenticator.policy.document.rules, caller)))
    return KnownCaller(caller.subject, caller.method, caller.groups, caller.expires_at_ms, rules=rules)


def answer_to(question: Question, guard: Guard | None) -> Decision:
    """Whether the caller may; refused as `known_caller` is."""
    resource = question.resource
    return _NO_RULES if guard is None else _proven(guard).decision(question.action, resource)


async def readable(namespaces: Namespaces, guard: Guard | None) -> list[str]:
    """The namespaces whose list of groups or topics the caller may read; refused as `known_caller` is.

    The store is not asked for a caller that may list nothing anywhere.
    """
    if guard is None:
        return await namespaces()
    identity = _proven(guard)
    if not may_ever(guard.authenticator.policy.document.rules, identity.caller, {Action.DESCRIBE}):
        return []
    lists = (Kind.GROUPS, Kind.TOPICS)
    return [
        each
        for each in await namespaces()
        if any(identity.decision(Action.DESCRIBE, Resource(kind, each)).allowed for kind in lists)
    ]


def _proven(guard: Guard) -> Identity:
    """The caller's identity, unless its credentials are invalid. Without credentials it is anonymous."""
    identity = guard.current()
    refusal = identity.proof_refused()
    if refusal:
        raise RejectedRequest(ErrorCode.UNAUTHENTICATED, refusal)
    guard.charge()
    return identity


def _known_rule(rule: Rule) -> KnownRule:
    actions = tuple(action.value for action in Action if action in rule.actions)
    return KnownRule(rule.name, rule.effect.value, actions, rule.namespaces, rule.groups, rule.topics)


# --- how it looks on the wire ---------------------------------------------------------------------


class _ActionName:
    """An action by its name."""

    def decode(self, value: Any, limits: Limits) -> Action:
        if value not in Action.__members__.values():
            raise invalid(f"must be one of {', '.join(Action)}")
        return Action(value)

    def encode(self, value: Action) -> str:
        return value.value

    def schema(self, limits: Limits) -> Schema:
        return {"type": "string", "enum": [action.value for action in Action]}


_TEXT = Text(2**31)
_PATTERNS = ListOf(_TEXT, 2**31 - 1)
_KNOWN_RULE = ObjectShape(
    dict,
    (
        Property("name", _TEXT, doc="The rule's name, as refusals say it."),
        Property("effect", _TEXT, doc="`allow` or `deny`."),
        Property("actions", _PATTERNS),
        Property("namespaces", _PATTERNS, doc="Exact names, or beginnings with a `*` behind them."),
        Property("groups", _PATTERNS, doc="Empty where the rule is about none."),
        Property("topics", _PATTERNS, doc="Empty where the rule is about none."),
    ),
    complete=True,
)

WHO_AM_I_REPLY = ObjectShape(
    dict,
    (
        Property("subject", _TEXT, doc="As rules name it: `token:ci`, `user:alice`, `sa:team-a/worker`, `anonymous` …"),
        Property("method", _TEXT, doc="How it was proven."),
        Property("groups", _PATTERNS, doc="The groups of people that its issuer counts it among."),
        Property("expires_at_ms", Integer(), None, "When the proof runs out; null where that is not known."),
        Property("guarded", Boolean(), doc="Whether there are rules at all; otherwise every caller may do everything."),
        Property("rules", ListOf(_KNOWN_RULE, 2**31 - 1), doc="Those that speak of the caller."),
    ),
    complete=True,
    title="WhoAmIReply",
)

NAMESPACES_REPLY = ObjectShape(
    dict,
    (Property("namespaces", _PATTERNS, doc="By name; those with groups or topics that the caller may list."),),
    complete=True,
    title="NamespacesReply",
)

CAN_I_QUERY = given(
    Question,
    (
        Property("action", _ActionName(), doc="`journal`, `metrics` of the server; the others of a namespace."),
        Property("namespace", Text(check=check_namespace, pattern=NAMESPACE_PATTERN), None, "The tenant."),
        Property(
            "group_id",
            Text(check=check_group_id, pattern=NAME_PATTERN),
            None,
            "The group; without it and without a topic, the list of groups.",
        ),
        Property("topic", Text(check=check_topic, pattern=NAME_PATTERN), None, "The topic, instead of a group."),
    ),
)

CAN_I_REPLY = ObjectShape(
    dict,
    (
        Property("allowed", Boolean()),
        Property("rule", _TEXT, doc="The rule that decides; empty where none speaks of it."),
        Property("detail", _TEXT, doc="The same in words."),
    ),
    complete=True,
    title="CanIReply",
)
