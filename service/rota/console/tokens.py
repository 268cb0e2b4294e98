"""API tokens of the store: their names, permissions and expiry; and revoking one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rota.access.rules import ANY, Rule
from rota.access.tokens import TokenRecord, state_of
from rota.console.actions import NOTE_MAX_CHARS, Form
from rota.console.commands import revoke_commands
from rota.console.desk import Desk
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import Act

_ACTS = 50
"""Number of events of the tokens' history on the page."""
_ORDER = {"good": 0, "expired": 1, "revoked": 2}


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as the page shows it. There is nothing secret about it: the store has digests only."""

    record: TokenRecord
    state: str
    scope: tuple[str, ...]

    @property
    def tone(self) -> str:
        return "calm" if self.state == "good" else "empty"


async def tokens_page(desk: Desk) -> dict[str, Any]:
    """The good ones first, by name."""
    now_ms = desk.now_ms()
    lines = [_row(record, now_ms) for record in await desk.tokens()]
    lines.sort(key=lambda line: (_ORDER[line.state], line.record.name, line.record.created_at_ms))
    return {
        "lines": lines,
        "good": sum(line.state == "good" for line in lines),
        "now_ms": now_ms,
        "acts": await desk.token_acts(_ACTS),
    }


async def revoke_page(desk: Desk, token_id: str, form: Form, complaint: str = "") -> dict[str, Any]:
    """Raises `RejectedRequest` where there is no such token."""
    return {
        "line": await _found(desk, token_id),
        "form": form,
        "complaint": complaint,
        "commands": revoke_commands(token_id),
        "note_max_chars": NOTE_MAX_CHARS,
        "now_ms": desk.now_ms(),
    }


async def revoke(desk: Desk, token_id: str, form: Form, act: Act) -> str:
    """Revoke it, unless something is missing in the form, which is returned then."""
    complaint = form.complaint((await _found(desk, token_id)).record.name, of="token")
    if not complaint:
        await desk.revoke_token(token_id, act)
    return complaint


async def _found(desk: Desk, token_id: str) -> TokenRow:
    for record in await desk.tokens():
        if record.token_id == token_id:
            return _row(record, desk.now_ms())
    raise RejectedRequest(ErrorCode.INVALID_REQUEST, "there is no such token")


def _row(record: TokenRecord, now_ms: int) -> TokenRow:
    return TokenRow(record, state_of(record, now_ms), tuple(map(_in_words, record.grants)))


def _in_words(grant: Rule) -> str:
    """`describe, join in shop, groups bill*`."""
    where = "all namespaces" if ANY in grant.namespaces else ", ".join(grant.namespaces)
    narrower = [
        f"{kind} {', '.join(patterns)}"
        for kind, patterns in (("groups", grant.groups), ("topics", grant.topics))
        if patterns and ANY not in patterns
    ]
    return ", ".join((f"{', '.join(sorted(grant.actions))} in {where}", *narrower))
