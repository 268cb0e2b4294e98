"""Members are tied to their callers: to the caller that joined, and to the calling pod by its token.

A member belongs to the caller that joined. The shard's owner compares (`group/sessions.py: check_caller`),
because it knows each member's caller. The guard of the replica that was called names the caller, and knows whether it
is an administrator of the group (ADR 43).

No pod joins or heartbeats for another one.
A member identity is a `group_instance_id`, or a `client_id` where there is none. It is a pod's where it is one of the
names below, or begins with one of them and a colon, so that one pod can hold several members (ADR 48):

- `NAMESPACE.POD`, in each namespace of Rota. A namespace of Kubernetes has no dot, so this is one pod's name.
- `POD`, in the namespace of Rota that is called like the pod's own. Only a name without a dot, and not like a uid.
- `UID`, the pod's.
- `CLUSTER_NAMESPACE.POD` alone, where the issuer has a prefix. No name of Kubernetes has an underscore.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from rota.core.access.rules import Caller, Pod
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode

_UUID_CHARS = 36
_PLAIN = re.compile(r"(?![0-9a-f-]{32,36}\Z)[a-z0-9-]+")
"""A pod's name that can be neither a uid nor `NAMESPACE.POD`."""


def wrong_with_pod(request: m.Request, caller: Caller, *, requires_pods: bool) -> str:
    """Why the caller may not act for the members in the request; empty if it may.

    Only the tokens of service accounts can name a pod, so `requires_pods` is about these: other callers are bound to
    none.
    """
    if caller.pod is not None:
        return check_binding(request, caller.pod)
    if requires_pods and caller.is_service_account and _members_in(request):
        return "the token names no pod, and members need the token that their own pod is given"
    return ""


def check_binding(request: m.Request, pod: Pod) -> str:
    """The error in the request's names; empty if they are the pod's."""
    own = _names(pod, request.namespace)
    expected = min(own - {pod.uid}, key=len)
    for member_id, group_instance_id in _members_in(request):
        named = {"group_instance_id": group_instance_id}
        if isinstance(request, m.JoinGroup) and group_instance_id is None and not member_id:
            # A newcomer's member id begins with its instance id or its client id.
            named["client_id"] = request.client_id
        for field, name in named.items():
            # No pod's name contains a colon.
            if name is not None and name.partition(":")[0] not in own:
                return f"{field} must be {expected}, the pod that the token is for"
        if member_id and member_id[: -_UUID_CHARS - 1].partition(":")[0] not in own:
            return f"the member is another pod's than {expected}"
    return ""


def _members_in(request: m.Request) -> list[tuple[str, str | None]]:
    """The members that the request acts for, by `member_id` and `group_instance_id`."""
    match request:
        case m.JoinGroup() | m.SyncGroup() | m.Heartbeat() | m.CommitOffsets(is_standalone=False):
            return [(request.member_id, request.group_instance_id)]
        case m.HeartbeatMany() | m.LeaveGroup(by_admin=False):
            return [(member.member_id, member.group_instance_id) for member in request.members]
        case m.VerifyFence(sign=True):
            return [(request.member_id, None)]
        case _:
            return []


def _names(pod: Pod, namespace: str) -> set[str]:
    full = f"{pod.namespace}.{pod.name}"
    if pod.cluster:
        return {f"{pod.cluster}_{full}"}
    is_at_home = namespace == pod.namespace and _PLAIN.fullmatch(pod.name)
    return {full, *([pod.name] if is_at_home else []), *([pod.uid] if pod.uid else [])}


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
