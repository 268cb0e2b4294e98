"""The settings of a sidecar."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from rota.client.options import PREEMPT_AFTER_S, RETURN_DELAY_S, SESSION_TIMEOUT_S
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
    """Settings with times in seconds. With `topics`, `topic_regex` or `connectors` it is a worker, otherwise a
    candidate.
    """

    group: str
    http: Address | Path
    """An address, or the path of a Unix socket."""
    probes: Address | None
    topics: tuple[str, ...] = ()
    strategy: str = "cooperative-sticky"
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
    topic_regex: str = ""
    """Instead of `topics`: an RE2 expression for whole names."""
    topics_debounce: float = 0.0
    priority: int = 0
    preempt_after: float | None = PREEMPT_AFTER_S
    connectors: tuple[str, ...] = ()
    """Instead of `topics`: registered topics that are connectors, with their partitions as tasks."""
    config_offset: Callable[[], int] | None = None
    """This worker's position in its configuration."""
    scheduled_rebalance_max_delay: float = RETURN_DELAY_S
    topics_except: tuple[str, ...] = ()
    """Topics to exclude from `topic_regex`, by name or prefix."""

    @property
    def works(self) -> bool:
        """Whether it is a worker."""
        return bool(self.topics or self.topic_regex or self.connectors)


def instance_id_of(environment: Mapping[str, str]) -> str | None:
    """Return a name that survives restarts, from the variables of Kubernetes' downward API.

    It is the pod's name, which survives a container's restart; a StatefulSet also reuses it for a replacement.
    """
    for variable in ("ROTA_GROUP_INSTANCE_ID", "POD_NAME"):
        if (found := environment.get(variable)) and _INSTANCE_ID.fullmatch(found):
            return found
    return None
