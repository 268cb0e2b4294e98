"""Rules decide, deny wins, and a refusal says by which rule."""

from __future__ import annotations

import pytest

from rota.core.access.document import InvalidAccess, read_document, read_rule
from rota.core.access.rules import ANONYMOUS, ROLES, Caller, Effect, Resource, Rule, decide, is_administrative, may_ever
from rota.protocol import messages as m
from rota.protocol.calls import Action, Kind, need_of
from tests.support.examples import EXAMPLES

WORKER = Caller("sa:team-a/worker", "kubernetes", groups=("workers",))
BILLING = Resource(Kind.GROUP, "team-a", "billing")


def a_rule(name: str = "r", subjects: tuple[str, ...] = ("sa:team-a/worker",), **fields: object) -> Rule:
    given: dict[str, object] = {"actions": frozenset({Action.JOIN}), **fields}
    return Rule(name, subjects, **given)  # type: ignore[arg-type]


def test_what_no_rule_allows_is_refused_and_says_so() -> None:
    decision = decide((), WORKER, Action.JOIN, BILLING)

    assert not decision.allowed
    assert decision.detail == "sa:team-a/worker may not join group team-a/billing: no rule allows it"


def test_a_rule_that_denies_wins_wherever_it_stands_and_is_named() -> None:
    frozen = a_rule("frozen", ("*",), groups=("bill*",), effect=Effect.DENY)

    for rules in ((a_rule(), frozen), (frozen, a_rule())):
        decision = decide(rules, WORKER, Action.JOIN, BILLING)
        assert (decision.allowed, decision.rule) == (False, "frozen")
        assert "rule 'frozen' denies it" in decision.detail


def test_a_rule_that_denies_wins_over_what_a_token_carries() -> None:
    token = Caller("token:ci", "token", grants=(a_rule("the token's scope", ("token:ci",)),))

    assert decide((), token, Action.JOIN, BILLING).allowed
    assert not decide((a_rule("stop", ("token:*",), effect=Effect.DENY),), token, Action.JOIN, BILLING).allowed


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, True),
        ({"subjects": ("sa:team-a/*",)}, True),
        ({"subjects": ("group:workers",)}, True),
        ({"subjects": ("*",)}, True),
        ({"subjects": ("sa:team-b/*",)}, False),
        ({"subjects": ("anonymous",)}, False),
        ({"namespaces": ("team-a",)}, True),
        ({"namespaces": ("team-*",)}, True),
        ({"namespaces": ("team-aa",)}, False),
        ({"groups": ("billing",)}, True),
        ({"groups": ("bill*",)}, True),
        ({"groups": ("bill",)}, False),
        ({"groups": ("billing2*",)}, False),
        ({"actions": frozenset({Action.COMMIT})}, False),
        ({"actions": ROLES["member"]}, True),
        ({"actions": ROLES["viewer"]}, False),
    ],
)
def test_a_rule_has_subjects_namespaces_groups_and_actions(fields: dict[str, object], allowed: bool) -> None:
    assert decide((a_rule(**fields),), WORKER, Action.JOIN, BILLING).allowed is allowed  # type: ignore[arg-type]


def test_who_may_see_some_groups_may_ask_for_the_list_of_them() -> None:
    some = a_rule(actions=frozenset({Action.DESCRIBE}), groups=("bill*",), topics=())
    hidden = a_rule("hidden", ("*",), actions=frozenset({Action.DESCRIBE}), groups=("secret*",), effect=Effect.DENY)

    assert decide((some, hidden), WORKER, Action.DESCRIBE, Resource(Kind.GROUPS, "team-a")).allowed
    assert not decide((some, hidden), WORKER, Action.DESCRIBE, Resource(Kind.TOPICS, "team-a")).allowed


def test_the_server_itself_is_for_rules_about_every_namespace() -> None:
    server = Resource(Kind.SERVER)

    assert not decide((a_rule(actions=ROLES["admin"], namespaces=("team-a",)),), WORKER, Action.METRICS, server).allowed
    assert decide((a_rule(actions=ROLES["admin"]),), WORKER, Action.METRICS, server).allowed


@pytest.mark.parametrize("named", [{"groups": ["bill*"]}, {"topics": ["documents"]}, {"groups": ["*"]}])
@pytest.mark.parametrize("action", [Action.JOURNAL, Action.METRICS])
def test_a_rule_about_groups_or_topics_grants_no_server_action(named: dict[str, list[str]], action: Action) -> None:
    everything, server = a_rule("everything", actions=ROLES["admin"]), Resource(Kind.SERVER)
    some = {"name": "some", "subjects": ["sa:team-a/*"], "actions": ["*"], **named}
    allowed, denied = read_rule(some), read_rule({**some, "effect": "deny"})

    assert not decide((allowed,), WORKER, action, server).allowed
    assert decide((everything, denied), WORKER, action, server).rule == "everything"


@pytest.mark.parametrize(
    ("request_", "action"),
    [
        (m.LeaveGroup("n", "g", (m.LeavingMember("a"),)), Action.JOIN),
        (m.LeaveGroup("n", "g", (m.LeavingMember("a"),), by_admin=True), Action.ADMINISTER),
        (m.CommitOffsets("n", "g", 3, (), member_id="a"), Action.COMMIT),
        (m.CommitOffsets("n", "g", -1, ()), Action.ADMINISTER),
        (m.VerifyFence("n", "g", 3), Action.DESCRIBE),
        (m.VerifyFence("n", "g", 3, "a", sign=True), Action.JOIN),
    ],
)
def test_some_requests_ask_for_more_when_a_field_says_so(request_: m.Request, action: Action) -> None:
    need = need_of(request_)

    assert need.action is action
    assert is_administrative(request_) is (action is Action.ADMINISTER)
    assert (need.kind, request_.key) == (Kind.GROUP, "g")


def an_issuer(number: int = 1, **fields: object) -> dict[str, object]:
    return {"issuer": f"https://i{number}", "audiences": ["rota"], **fields}


@pytest.mark.parametrize("first", ["", "dev"])
@pytest.mark.parametrize("second", ["", "dev", "prod"])
@pytest.mark.parametrize("kinds", [("oidc", "oidc"), ("kubernetes", "kubernetes"), ("oidc", "kubernetes")])
def test_issuers_that_would_give_the_same_names_are_refused(first: str, second: str, kinds: tuple[str, str]) -> None:
    issuers = [an_issuer(1, kind=kinds[0], prefix=first), an_issuer(2, kind=kinds[1], prefix=second)]

    if first == second and kinds[0] == kinds[1]:
        with pytest.raises(InvalidAccess, match="'https://i1' and 'https://i2' would give the same names"):
            read_document({"issuers": issuers})
    else:
        assert len(read_document({"issuers": issuers}).issuers) == 2


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"rule": []}, "unknown field `rule`"),
        ({"rules": [{"subjects": ["*"], "actions": ["join"]}]}, "field `name`"),
        ({"rules": [{"name": "r", "subjects": ["*"], "actions": ["fly"]}]}, "'fly' .*actions"),
        ({"rules": [{"name": "r", "subjects": [], "actions": ["join"]}]}, "rule 'r'.*subjects"),
        ({"rules": [{"name": "r", "subjects": ["*"], "actions": ["join"], "effect": "no"}]}, "effect"),
        ({"rules": [{"name": "r", "subjects": ["*"], "actions": ["join"], "groups": ["a*b"]}]}, "rule 'r'.*groups"),
        ({"rules": [{"name": "r", "subjects": ["*"], "actions": ["join"]}] * 2}, "'r' is there twice"),
        ({"issuers": [{"issuer": "https://i"}]}, "audiences"),
        ({"issuers": [{"issuer": "https://i", "audiences": ["rota"], "algorithms": ["HS256"]}]}, "algorithms"),
        ({"issuers": [{"issuer": "i", "audiences": ["rota"], "review": "https://k"}]}, "review is for kind kubernetes"),
        ({"issuers": [an_issuer(prefix="group")]}, "prefix must be"),
        ({"issuers": [an_issuer(prefix="a:b")]}, "prefix must be"),
        ({"issuers": [an_issuer(subject_prefix="corp:")]}, "subject_prefix"),
        ({"require_pods": True}, "require_pods needs bind_members_to_pods"),
        ({"quotas": [{"namespace": "a", "max_groups": 0}]}, "max_groups"),
        ({"bind_members_to_pods": "yes"}, "bind_members_to_pods"),
        ({"bind_members_to_callers": 1}, "bind_members_to_callers"),
    ],
)
def test_a_file_of_another_kind_is_rejected_with_its_reason(document: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidAccess, match=message):
        read_document(document)


def test_what_a_request_needs_is_among_what_its_type_may_need() -> None:
    for example in EXAMPLES:
        assert need_of(example.request) in example.call.needs


def test_no_rule_but_one_that_allows_lets_a_caller_in() -> None:
    worker = Caller("token:w", "token")
    allow = Rule("a", ("token:w",), ROLES["viewer"])
    deny = Rule("d", ("token:w",), ROLES["member"], effect=Effect.DENY)

    assert may_ever([allow], worker, ROLES["viewer"])
    assert not may_ever([deny], worker, ROLES["member"])
    assert not may_ever([allow], worker, ROLES["admin"] - ROLES["member"])
    assert not may_ever([allow, Rule("all", ("*",), ROLES["admin"])], ANONYMOUS, ROLES["admin"])
