"""Members belong to the callers that joined: which requests are checked, and which answers say that the check failed.

The shard's owner compares (`group/membership_checks.py: check_caller`), because it knows each member's caller. The
guard of the replica that was called names the caller, and says whether it is an administrator of the group (ADR 43).
"""

from __future__ import annotations

from msgspec.structs import replace

from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode


def in_name_of(request: m.Request, subject: str) -> m.Request:
    """The request with its caller; as it is where it is in no member's name, or an administrator's by itself."""
    if isinstance(request, m.LeaveGroup) and request.by_admin:
        return request
    if not isinstance(request, m.InMembersName):
        return request
    signed: m.Request = replace(request, subject=subject)
    return signed


def is_anothers(reply: m.Reply) -> bool:
    """Whether the owner rejected the request, or a part of it, because another caller joined as the member."""
    if reply.error is ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return True
    match reply:
        case m.LeaveReply(members=parts):
            return any(part.error is ErrorCode.GROUP_AUTHORIZATION_FAILED for part in parts)
        case m.HeartbeatManyReply(errors=errors):
            return any(error.error is ErrorCode.GROUP_AUTHORIZATION_FAILED for error in errors)
        case _:
            return False
