"""Answers callers about themselves: their identity at this server, and their permissions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from rota.core.access.rules import Resource, Rule, may_ever, rules_for
from rota.protocol.calls import Action, Kind
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.values import Namespace, Topic
from rota.protocol.wire.shapes import Shape, invalid
from rota.server.access.guard import Guard
from rota.server.access.identity import Identity

Namespaces = Callable[[], Awaitable[list[str]]]
"""The namespaces that have groups or topics, by name."""
_OF_THE_SERVER = frozenset({Action.JOURNAL, Action.METRICS})


class KnownRule(Struct, frozen=True):
    """A rule that applies to the caller. Its other subjects are not returned."""

    name: str
    """The rule's name, as refusals say it."""
    effect: str
    """`allow` or `deny`."""
    actions: tuple[str, ...]
    namespaces: tuple[str, ...]
    """Exact names, or beginnings with a `*` behind them."""
    groups: tuple[str, ...]
    """Empty if the rule is about none."""
    topics: tuple[str, ...]
    """Empty if the rule is about none."""


class WhoAmIReply(Struct, frozen=True):
    """The caller as the server knows it."""

    subject: str
    """The name of the caller in rules: `token:ci`, `user:alice`, `sa:team-a/worker`, `anonymous` …"""
    method: str
    """How it was proven."""
    groups: tuple[str, ...] = ()
    """The groups of people that its issuer counts it among."""
    expires_at_ms: int | None = None
    """When the proof runs out; null if that is not known."""
    guarded: bool = True
    """Whether there are rules at all; otherwise every caller may do everything."""
    rules: tuple[KnownRule, ...] = ()
    """The rules about the caller."""


class NamespacesReply(Struct, frozen=True):
    """The namespaces that the caller may see."""

    namespaces: tuple[str, ...]
    """By name; those with groups or topics that the caller may list."""


class CanIReply(Struct, frozen=True):
    """Whether the caller may do what it has asked."""

    allowed: bool
    rule: str
    """The rule that decides; empty if none speaks of it."""
    detail: str
    """The same in words."""


class Question(Struct, frozen=True):
    """May I do this there? Without a namespace it is about the server, with nothing else about the list of groups."""

    action: Action
    """`journal`, `metrics` of the server; the others of a namespace."""
    namespace: Namespace | None = None
    """The tenant."""
    group_id: Topic | None = None
    """The group; without it and without a topic, the list of groups."""
    topic: Topic | None = None
    """The topic, instead of a group."""

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


def known_caller(guard: Guard | None) -> WhoAmIReply:
    """The caller's identity; raises `RejectedRequest` for invalid credentials, so that `whoami` reports them."""
    if guard is None:
        return WhoAmIReply("anonymous", "none", guarded=False)
    caller = _proven(guard).caller
    rules = tuple(map(_known_rule, rules_for(guard.rules.rules, caller)))
    return WhoAmIReply(caller.subject, caller.method, caller.groups, caller.expires_at_ms, rules=rules)


def answer_to(question: Question, guard: Guard | None) -> CanIReply:
    """Whether the caller may; refused as `known_caller` is."""
    resource = question.resource
    if guard is None:
        return _NO_RULES
    decision = _proven(guard).decision(question.action, resource)
    return CanIReply(decision.allowed, decision.rule, decision.detail)


async def readable(namespaces: Namespaces, guard: Guard | None) -> list[str]:
    """The namespaces whose list of groups or topics the caller may read; refused as `known_caller` is.

    The store is not asked for a caller that may list nothing anywhere.
    """
    if guard is None:
        return await namespaces()
    identity = _proven(guard)
    if not may_ever(guard.rules.rules, identity.caller, {Action.DESCRIBE}):
        return []
    lists = (Kind.GROUPS, Kind.TOPICS)
    return [
        each
        for each in await namespaces()
        if any(identity.may(Action.DESCRIBE, Resource(kind, each)) for kind in lists)
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


_NO_RULES = CanIReply(allowed=True, rule="", detail="this server has no rules: every caller may do everything")
CAN_I_QUERY = Shape(Question, closed=True)
