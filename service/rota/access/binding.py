"""Member identities that are tied to the pod whose token calls: nobody joins or heartbeats in another pod's name."""

from __future__ import annotations

from rota.access.caller import Pod
from rota.protocol import messages as m

_UUID_CHARS = 36


def check_binding(request: m.Request, pod: Pod) -> str:
    """What is wrong with the names in the request; empty where they are the pod's.

    They are its name or its uid, or begin with one of them and a colon, so that one pod can hold several members.
    """
    match request:
        case m.JoinGroup():
            return _check(pod, request.member_id, request.group_instance_id) or _check_newcomer(pod, request)
        case m.SyncGroup() | m.Heartbeat():
            return _check(pod, request.member_id, request.group_instance_id)
        case m.HeartbeatMany():
            wrong = (_check(pod, beat.member_id, beat.group_instance_id) for beat in request.members)
            return next(filter(None, wrong), "")
        case m.LeaveGroup(by_admin=False):
            wrong = (_check(pod, member.member_id, member.group_instance_id) for member in request.members)
            return next(filter(None, wrong), "")
        case m.CommitOffsets():
            return _check(pod, request.member_id, request.group_instance_id)
        case m.VerifyFence(sign=True):
            return _check(pod, request.member_id, None)
        case _:
            return ""


def _check_newcomer(pod: Pod, request: m.JoinGroup) -> str:
    """A newcomer's member id begins with its instance id or its client id."""
    if request.group_instance_id is not None or request.member_id or is_of(pod, request.client_id):
        return ""
    return f"client_id must be {pod.name}, the pod that the token is for"


def _check(pod: Pod, member_id: str, group_instance_id: str | None) -> str:
    if group_instance_id is not None and not is_of(pod, group_instance_id):
        return f"group_instance_id must be {pod.name}, the pod that the token is for"
    if member_id and not is_of(pod, member_id[: -_UUID_CHARS - 1]):
        return f"the member is another pod's than {pod.name}"
    return ""


def is_of(pod: Pod, identity: str) -> bool:
    """Whether this identity is the pod's. No pod's name contains a colon."""
    return identity.partition(":")[0] in {pod.name, pod.uid or pod.name}
