"""The access file's content, checked: rules, quotas, issuers. Its format is in docs/how-to/security.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rota.access.actions import ROLES, Action
from rota.access.claims import ALGORITHMS, Issuer
from rota.access.quotas import OF_CALLERS_ALONE, Quota
from rota.access.rules import ANONYMOUS_SUBJECT, ANY, RESERVED, Effect, Rule, name_by
from rota.protocol.ids import NAME_PATTERN, NAMESPACE_PATTERN

_RULE_KEYS = ("name", "subjects", "actions", "namespaces", "groups", "topics", "effect")
_KINDS = ("oidc", "kubernetes")
_PREFIX = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


class InvalidAccess(ValueError):
    """The document cannot be used; the message says where and why."""


_SWITCHES = {"bind_members_to_pods": False, "require_pods": False, "bind_members_to_callers": True}


@dataclass(frozen=True, slots=True)
class AccessDocument:
    """What the file says. Quotas are by namespace, those of callers by their subject or a pattern of subjects.

    `bind_members_to_pods`, `require_pods`: see `rota.access.binding`; `bind_members_to_callers`: see
    `rota.access.own_name`.
    """

    rules: tuple[Rule, ...] = ()
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    caller_quotas: Mapping[str, Quota] = field(default_factory=dict)
    issuers: tuple[Issuer, ...] = ()
    bind_members_to_pods: bool = False
    require_pods: bool = False
    bind_members_to_callers: bool = True


def read_document(document: Mapping[str, Any]) -> AccessDocument:
    """The file's content, as TOML gives it; raises `InvalidAccess`."""
    _only(document, ("rules", "quotas", "caller_quotas", "issuers", *_SWITCHES), "the file")
    switches = {name: document.get(name, default) for name, default in _SWITCHES.items()}
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise InvalidAccess(f"{name} must be true or false")
    if switches["require_pods"] and not switches["bind_members_to_pods"]:
        raise InvalidAccess("require_pods needs bind_members_to_pods = true")
    rules = tuple(_each(document, "rules", read_rule))
    _unique((rule.name for rule in rules), "rules")
    issuers = tuple(_each(document, "issuers", _issuer))
    _unique((issuer.issuer for issuer in issuers), "issuers")
    _check_prefixes(issuers)
    quotas, of_callers = dict(_each(document, "quotas", _quota)), dict(_each(document, "caller_quotas", _caller_quota))
    return AccessDocument(rules, quotas, of_callers, issuers, **switches)


def read_rule(table: Mapping[str, Any]) -> Rule:
    """One rule, as TOML and JSON have it; raises `InvalidAccess`."""
    _only(table, _RULE_KEYS, "a rule")
    name = _text(table, "name")
    where = f"rule {name!r}"
    given = {
        "namespaces": _patterns(table, "namespaces", NAMESPACE_PATTERN, where),
        "groups": _patterns(table, "groups", NAME_PATTERN, where),
        "topics": _patterns(table, "topics", NAME_PATTERN, where),
    }
    if given["groups"] is not None or given["topics"] is not None:
        # A rule that names only groups does not cover all topics as well.
        given["groups"], given["topics"] = given["groups"] or (), given["topics"] or ()
    try:
        effect = Effect(table.get("effect", Effect.ALLOW))
    except ValueError:
        raise InvalidAccess(f"{where}: effect must be allow or deny") from None
    subjects = _texts(table, "subjects", where)
    actions = read_actions(_texts(table, "actions", where), where)
    return Rule(
        name, subjects, actions, effect=effect, **{key: value for key, value in given.items() if value is not None}
    )


def read_actions(names: Iterable[str], where: str) -> frozenset[Action]:
    """Actions, roles, or `*` for all."""
    actions: set[Action] = set()
    for name in names:
        if name == ANY:
            actions.update(Action)
        elif name in ROLES:
            actions.update(ROLES[name])
        elif name in Action.__members__.values():
            actions.add(Action(name))
        else:
            known = ", ".join((*Action, *ROLES))
            raise InvalidAccess(f"{where}: {name!r} is no action or role; there are {known}")
    return frozenset(actions)


def write_rule(rule: Rule) -> dict[str, Any]:
    """The reverse of `read_rule`, as JSON values."""
    table = {
        "name": rule.name,
        "subjects": list(rule.subjects),
        "actions": sorted(rule.actions),
        "namespaces": list(rule.namespaces),
        "groups": list(rule.groups),
        "topics": list(rule.topics),
        "effect": rule.effect.value,
    }
    return {key: value for key, value in table.items() if value}


def _issuer(table: Mapping[str, Any]) -> Issuer:
    _only(table, [each.name for each in fields(Issuer)], "an issuer")
    name = _text(table, "issuer")
    where = f"issuer {name!r}"
    given: dict[str, Any] = {key: table[key] for key in table if key not in ("audiences", "algorithms")}
    for key, value in given.items():
        if key != "leeway_s" and not isinstance(value, str):
            raise InvalidAccess(f"{where}: {key} must be text")
    if table.get("kind", "oidc") not in _KINDS:
        raise InvalidAccess(f"{where}: kind must be oidc or kubernetes")
    _check_prefix(table.get("prefix", ""), where)
    if not isinstance(table.get("leeway_s", 0), int) or not 0 <= table.get("leeway_s", 0) <= 300:
        raise InvalidAccess(f"{where}: leeway_s must be from 0 to 300")
    if table.get("review") and (table.get("kind") != "kubernetes" or table.get("jwks")):
        raise InvalidAccess(f"{where}: review is for kind kubernetes, and instead of jwks")
    algorithms = _texts(table, "algorithms", where) if "algorithms" in table else ALGORITHMS
    if not set(algorithms) <= set(ALGORITHMS):
        raise InvalidAccess(f"{where}: algorithms must be among {', '.join(ALGORITHMS)}")
    # A token for another audience must not work here: so there is no default.
    return Issuer(audiences=_texts(table, "audiences", where), algorithms=algorithms, **given)


def _check_prefix(prefix: str, where: str) -> None:
    if prefix and (not _PREFIX.fullmatch(prefix) or prefix in RESERVED):
        reserved = ", ".join(sorted(RESERVED))
        raise InvalidAccess(f"{where}: prefix must be 1 to 32 of a-z 0-9 -, and none of {reserved}")


def _check_prefixes(issuers: Iterable[Issuer]) -> None:
    """No two issuers may give the same name: a rule for one of them would be one for the other as well."""
    given: dict[tuple[str, str], Issuer] = {}
    for issuer in issuers:
        for kind in sorted(issuer.kinds):
            other = given.setdefault((issuer.prefix, kind), issuer)
            if other is not issuer:
                same = f"{other.issuer!r} and {issuer.issuer!r} would give the same names"
                raise InvalidAccess(f"issuers {same} ({name_by(issuer.prefix, kind, '…')}): give one a prefix")


def _quota(table: Mapping[str, Any]) -> tuple[str, Quota]:
    return _limits(table, "namespace", [each.name for each in fields(Quota) if each.name not in OF_CALLERS_ALONE])


def _caller_quota(table: Mapping[str, Any]) -> tuple[str, Quota]:
    subject, quota = _limits(table, "subject", [each.name for each in fields(Quota)])
    # Callers without credentials are counted by address, which stands behind the word.
    return (subject + ANY if subject == ANONYMOUS_SUBJECT else subject), quota


def _limits(table: Mapping[str, Any], key: str, numbers: Sequence[str]) -> tuple[str, Quota]:
    _only(table, (key, *numbers), "a quota")
    of = _text(table, key)
    for name in numbers:
        value = table.get(name, 1)
        if type(value) is not int or value < 1:
            raise InvalidAccess(f"the quota of {of!r}: {name} must be a positive number")
    return of, Quota(**{name: table[name] for name in numbers if name in table})


def _each(document: Mapping[str, Any], key: str, read: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
    tables = document.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise InvalidAccess(f"{key} must be a list of tables: [[{key}]]")
    return [read(table) for table in tables]


def _only(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise InvalidAccess(f"{where} has no {unknown[0]!r}; there are {', '.join(known)}")


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidAccess(f"{key} must be given, as text")
    return value


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    values = table.get(key)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) and value for value in values):
        raise InvalidAccess(f"{where}: {key} must be a list of names")
    return tuple(values)


def _patterns(table: Mapping[str, Any], key: str, pattern: str, where: str) -> tuple[str, ...] | None:
    if key not in table:
        return None
    values = _texts(table, key, where)
    for value in values:
        if value != ANY and not re.fullmatch(pattern, value.removesuffix(ANY)):
            raise InvalidAccess(f"{where}: {value!r} in {key} is no name, nor the beginning of one with a * behind it")
    return values


def _unique(names: Iterable[str], what: str) -> None:
    seen: list[str] = []
    for name in names:
        if name in seen:
            raise InvalidAccess(f"{what}: {name!r} is there twice")
        seen.append(name)
