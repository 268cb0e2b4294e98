"""What the core has decided, in the few words that a span may carry: never a member's metadata, never an assignment."""

from __future__ import annotations

from rota.group.result import Result


def described(result: Result) -> dict[str, str | int | bool]:
    """The generation, the reason, the kinds of the journal's lines, and the error where the call was refused."""
    told: dict[str, str | int | bool] = {"rota.reason": result.reason} if result.reason else {}
    if result.records:
        told["rota.generation_id"] = result.records[-1].generation_id
        told["rota.records"] = " ".join(entry.record.kind for entry in result.records)
    for _, reply in result.replies:
        told["rota.code"] = reply.error.name
        generation_id = getattr(reply, "generation_id", None)
        if generation_id is not None:
            told["rota.generation_id"] = generation_id
    if not result.replies:
        told["rota.parked"] = True
    return told
