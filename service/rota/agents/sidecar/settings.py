"""The settings of a sidecar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from rota.agents.shared_work import SharedWork
from rota.client.options import PREEMPT_AFTER_S, SESSION_TIMEOUT_S
from rota.protocol.defaults import HOOKS_TIMEOUT_MS

_INSTANCE_ID = re.compile(r"[A-Za-z0-9._:-]{1,249}")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class SidecarSettings:
    """Settings with times in seconds. With `shared` work it is a worker, otherwise a candidate."""

    group: str
    http: Address | Path
    """An address, or the path of a Unix socket."""
    probes: Address | None
    shared: SharedWork | None = None
    session_timeout: float = SESSION_TIMEOUT_S
    instance_id: str | None = None
    name: str | None = None
    """The name that others see; by default the name of the machine."""
    progress_timeout: float | None = None
    """Maximum time without progress of the program (`POST /progress`) before its share is released."""
    revoke_timeout: float = HOOKS_TIMEOUT_MS / 1000
    """Time for hooks to stop work in order, before another member may start."""
    leaves: bool = True
    """Leave the group at the end. Otherwise a static member keeps its place for its next start."""
    file: Path | None = None
    webhook: str | None = None
    webhook_secret: bytes | None = None
    command: tuple[str, ...] = ()
    pod_label: str | None = None
    token_file: Path | None = None
    """A token that programs must send."""
    allow_host: tuple[str, ...] = ()
    priority: int = 0
    preempt_after: float | None = PREEMPT_AFTER_S


def instance_id_of(environment: Mapping[str, str]) -> str | None:
    """Return a name that survives restarts, from the variables of Kubernetes' downward API.

    It is the pod's name, which survives a container's restart; a StatefulSet also reuses it for a replacement.
    """
    for variable in ("ROTA_GROUP_INSTANCE_ID", "POD_NAME"):
        if (found := environment.get(variable)) and _INSTANCE_ID.fullmatch(found):
            return found
    return None
