"""Guarded actions: each describes its effect, requires the group's name and a note, and makes an ordinary call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import (
    DeleteGroup,
    FreezeGroup,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    QuarantineGroup,
    RebalanceGroup,
    Request,
)
from rota.server.console.backend import Asked, Backend
from rota.server.console.group import command_parts, refusals
from rota.server.console.rendering import segment

NOTE_MAX_CHARS = 500
FREEZE_MS = 1_200_000
"""Duration of a freeze by the console."""


@dataclass(frozen=True, slots=True)
class Action:
    """`effect` is shown before the action, `done` after it."""

    name: str
    title: str
    verb: str
    effect: str
    done: str


ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action(
            "rebalance",
            "Force a rebalance",
            "Rebalance now",
            "All members are notified at once and join again. No member is removed; work stops until all have a share.",
            "The rebalance is under way.",
        ),
        Action(
            "step-down",
            "Step down the leader",
            "Step down",
            "The group rebalances, and the next member in line leads. The old leader stays a member; its token ends.",
            "The leader was asked to step down.",
        ),
        Action(
            "freeze",
            "Freeze for 20 minutes",
            "Freeze",
            "Rebalances that can wait are postponed: new members, changes of topics and higher priorities. Members "
            "that leave or expire still cause one.",
            "The group is frozen.",
        ),
        Action(
            "unfreeze",
            "End the freeze",
            "Unfreeze",
            "The postponed rebalances start at once.",
            "The group is not frozen any more.",
        ),
        Action(
            "release",
            "Release quarantined units",
            "Release",
            "All quarantined units are released, and the group rebalances: members work on them again.",
            "The units are released.",
        ),
        Action(
            "evict",
            "Evict a member",
            "Evict",
            "The member is removed and its next call rejected; its share moves to the others. A process that still "
            "runs joins again as a new member.",
            "The member is removed.",
        ),
        Action(
            "delete",
            "Delete the group",
            "Delete",
            "The group and its offsets are deleted. If it is created again, its generations continue.",
            "The group is deleted.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Form:
    """The values that the user typed."""

    typed: str = ""
    note: str = ""
    member_id: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Form:
        note = " ".join(fields.get("note", "").split())
        return cls(fields.get("typed", "").strip(), note, fields.get("member", ""))

    def complaint(self, group_id: str) -> str:
        """Return the missing input as a message; empty if complete."""
        if self.typed != group_id:
            return f"Type the group's name, {group_id}, to confirm."
        if not self.note:
            return "Say why: the note is kept in the journal."
        if len(self.note) > NOTE_MAX_CHARS:
            return f"The note may have at most {NOTE_MAX_CHARS} characters."
        return ""


def action_named(name: str) -> Action:
    if name not in ACTIONS:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"there is no action {name!r}")
    return ACTIONS[name]


async def action_page(asked: Asked, action: Action, form: Form, complaint: str = "") -> dict[str, Any]:
    group = (await asked.backend.describe(asked.namespace, asked.name)).group
    members = [member.member_id for member in group.members]
    gone = "that member has left" if action.name == "evict" and form.member_id not in members else ""
    return {
        "namespace": asked.namespace,
        "group": group,
        "action": action,
        "form": form,
        "complaint": complaint,
        "refusal": refusals(group, asked.backend.now_ms())[action.name] or gone,
        "commands": _commands(asked, action.name, form.member_id),
        "note_max_chars": NOTE_MAX_CHARS,
    }


def _commands(asked: Asked, action: str, member_id: str) -> list[tuple[str, str]]:
    """Return the commands that have the effect of a form."""
    rota, url, group = command_parts(asked.base_url, asked.namespace, asked.name)
    words, path, body = {
        "evict": (f"remove-member {group} {quote(member_id)}", f"/members/{segment(member_id)}", ""),
        "delete": (f"delete {group}", "", ""),
        "freeze": (f"freeze {group} --for 20m", "/freeze", '{"for_ms": 1200000}'),
        "unfreeze": (f"unfreeze {group}", "/freeze", '{"for_ms": 0}'),
        "release": (f"release {group} $({rota} quarantine {group})", "/quarantine", '{"release": ["UNIT"]}'),
        "step-down": (f"rebalance {group} --step-down", "/rebalance", '{"step_down": true}'),
        "rebalance": (f"rebalance {group}", "/rebalance", "{}"),
    }[action]
    how = f"-X POST -H 'content-type: application/json' -d '{body}'" if body else "-X DELETE"
    return [("CLI", f"{rota} {words} --reason WHY"), ("curl", f"curl {how} {quote(url + path)}")]


async def act(backend: Backend, namespace: str, group_id: str, action: Action, form: Form) -> None:
    """Carry out the action; raise `RejectedRequest` if the coordinator rejects it."""
    request: Request
    match action.name:
        case "evict":
            leaving = (LeavingMember(form.member_id, None, form.note),)
            request = LeaveGroup(namespace, group_id, leaving, by_admin=True)
        case "delete":
            request = DeleteGroup(namespace, group_id, form.note)
        case "freeze" | "unfreeze":
            request = FreezeGroup(namespace, group_id, FREEZE_MS if action.name == "freeze" else 0, form.note)
        case "release":
            units = (await backend.describe(namespace, group_id)).group.quarantined
            request = QuarantineGroup(namespace, group_id, release=units, reason=form.note)
        case _:
            request = RebalanceGroup(namespace, group_id, form.note, step_down=action.name == "step-down")
    reply = await backend.call(request)
    if isinstance(reply, LeaveReply):
        for left in reply.members:
            if left.error is not ErrorCode.NONE:
                raise RejectedRequest(left.error, f"{form.member_id} is no longer a member")
