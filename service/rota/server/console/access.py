"""The caller's own access: its subject, and the rules that apply to it, each with its role."""

from __future__ import annotations

from typing import Any

from rota.core.access.rules import ANONYMOUS_SUBJECT, role_of
from rota.server.access.guard import Guard
from rota.server.access.inquiry import known_caller


def access_page(guard: Guard | None) -> dict[str, Any]:
    """Return the values of the page, as in `GET /v1/whoami`; raise `RejectedRequest` for invalid credentials."""
    caller = known_caller(guard)
    rules = [(rule, role_of(rule.actions)) for rule in caller.rules]
    return {"caller": caller, "is_anonymous": caller.subject == ANONYMOUS_SUBJECT, "rules": rules}
