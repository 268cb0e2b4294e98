"""The access file's content, checked: rules, quotas, issuers. Its format is in docs/how-to/security.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from rota.core.access.quotas import Quota
from rota.core.access.rules import ANONYMOUS_SUBJECT, ANY, RESERVED, ROLES, Rule, Text, Texts, name_by
from rota.protocol.calls import Action

USER, GROUP, SERVICE_ACCOUNT = "user", "group", "sa"
_KINDS = {"oidc": (GROUP, USER), "kubernetes": (SERVICE_ACCOUNT,)}
"""The kinds of names that an issuer of a kind gives."""
_PREFIX = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_Algorithm = Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA"]
"""Algorithms with a public key. With a shared secret every verifier of tokens could make them, too."""
_Content = TypeVar("_Content")


class InvalidAccess(ValueError):
    """The document cannot be used; the message says where and why."""


class Issuer(Struct, frozen=True, forbid_unknown_fields=True):
    """A trusted issuer of tokens.

    `jwks` is a file or a URL with its keys; if it is empty, OIDC discovery finds them. `review` is the
    URL of a Kubernetes API server that is asked about each token instead. `bearer_file` and `ca_file` are for asking.
    """

    issuer: Text
    audiences: Texts
    """A token for another audience must not be accepted here, so there is no default."""
    kind: Literal["oidc", "kubernetes"] = "oidc"
    jwks: str = ""
    review: str = ""
    ca_file: str = ""
    bearer_file: str = ""
    prefix: str = ""
    """Stands before all names that this issuer gives: `corp:user:alice`, `corp:group:sre`, `corp:sa:team-a/worker`."""
    subject_claim: str = "sub"
    groups_claim: str = "groups"
    algorithms: Annotated[tuple[_Algorithm, ...], Meta(min_length=1)] = _Algorithm.__args__  # type: ignore[attr-defined]
    leeway_s: Annotated[int, Meta(ge=0, le=300)] = 30

    def __post_init__(self) -> None:
        if self.prefix and (not _PREFIX.fullmatch(self.prefix) or self.prefix in RESERVED):
            raise ValueError(f"prefix must be 1 to 32 of a-z 0-9 -, and none of {', '.join(sorted(RESERVED))}")
        if self.review and (self.kind != "kubernetes" or self.jwks):
            raise ValueError("review is for kind kubernetes, and instead of jwks")


class AccessDocument(Struct, frozen=True):
    """The file's content. Quotas are by namespace, those of callers by their subject or a pattern of subjects.

    `bind_members_to_pods`, `require_pods` and `bind_members_to_callers`: see `rota.core.access.binding`.
    """

    rules: tuple[Rule, ...] = ()
    quotas: Mapping[str, Quota] = {}
    caller_quotas: Mapping[str, Quota] = {}
    issuers: tuple[Issuer, ...] = ()
    bind_members_to_pods: bool = False
    require_pods: bool = False
    bind_members_to_callers: bool = True


class _QuotaOfNamespace(Quota, frozen=True, kw_only=True, forbid_unknown_fields=True):
    namespace: Text

    def __post_init__(self) -> None:
        if self.max_streams is not None:
            raise ValueError("max_streams is for callers: a stream belongs to no namespace")


class _QuotaOfCaller(Quota, frozen=True, kw_only=True, forbid_unknown_fields=True):
    subject: Text


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content as TOML has it."""

    rules: tuple[dict[str, Any], ...] = ()
    quotas: tuple[_QuotaOfNamespace, ...] = ()
    caller_quotas: tuple[_QuotaOfCaller, ...] = ()
    issuers: tuple[Issuer, ...] = ()
    bind_members_to_pods: bool = False
    require_pods: bool = False
    bind_members_to_callers: bool = True

    def __post_init__(self) -> None:
        if self.require_pods and not self.bind_members_to_pods:
            raise ValueError("require_pods needs bind_members_to_pods = true")


def read_document(document: Mapping[str, Any]) -> AccessDocument:
    """The file's content, as TOML gives it; raises `InvalidAccess`."""
    file = _converted(document, _File)
    rules = tuple(map(read_rule, file.rules))
    _unique((rule.name for rule in rules), "rules")
    _unique((issuer.issuer for issuer in file.issuers), "issuers")
    _check_prefixes(file.issuers)
    return AccessDocument(
        rules,
        {quota.namespace: quota for quota in file.quotas},
        # Callers without credentials are counted by address, which stands behind the word.
        {quota.subject + ANY * (quota.subject == ANONYMOUS_SUBJECT): quota for quota in file.caller_quotas},
        file.issuers,
        file.bind_members_to_pods,
        file.require_pods,
        file.bind_members_to_callers,
    )


def read_rule(table: Mapping[str, Any]) -> Rule:
    """One rule, as TOML and options of commands have it, with roles among its actions; raises `InvalidAccess`."""
    given = dict(table)
    if isinstance(given.get("actions"), list):
        names = given["actions"]
        given["actions"] = [
            each for name in names for each in (Action if name == ANY else ROLES.get(str(name), [name]))
        ]
    if "groups" in given or "topics" in given:
        # A rule that names only groups does not cover all topics as well.
        given = {"groups": [], "topics": [], **given}
    try:
        return _converted(given, Rule)
    except InvalidAccess as error:
        known = f"; there are {', '.join((*Action, *ROLES))}" if "$.actions" in str(error) else ""
        raise InvalidAccess(f"rule {given.get('name')!r}: {error}{known}") from None


def _converted(document: Mapping[str, Any], kind: type[_Content]) -> _Content:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InvalidAccess(str(error)) from None


def _check_prefixes(issuers: Iterable[Issuer]) -> None:
    """No two issuers may give the same name: a rule for one of them would be one for the other as well."""
    given: dict[tuple[str, str], Issuer] = {}
    for issuer in issuers:
        for kind in _KINDS[issuer.kind]:
            other = given.setdefault((issuer.prefix, kind), issuer)
            if other is not issuer:
                same = f"{other.issuer!r} and {issuer.issuer!r} would give the same names"
                raise InvalidAccess(f"issuers {same} ({name_by(issuer.prefix, kind, '…')}): give one a prefix")


def _unique(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidAccess(f"{what}: {name!r} is there twice")
        seen.add(name)
