"""The settings of a sidecar."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from rota.client.seconds import PREEMPT_AFTER_S, RETURN_DELAY_S, SESSION_TIMEOUT_S
from rota.protocol.defaults import HOOKS_TIMEOUT_MS

_INSTANCE_ID = re.compile(r"[A-Za-z0-9._:-]{1,249}")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Only this machine reaches it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class SidecarSettings:
    """Times are seconds. `topics`, `topic_regex` or `connectors` make it a worker, otherwise it is a candidate."""

    group: str
    http: Address | Path
    """An address, or the path of a Unix socket."""
    probes: Address | None
    topics: tuple[str, ...] = ()
    strategy: str = "cooperative-sticky"
    session_timeout: float = SESSION_TIMEOUT_S
    instance_id: str | None = None
    name: str | None = None
    """How others see it; by default the name of the machine."""
    progress_timeout: float | None = None
    """How long the program may make no progress (`POST /progress`) before its share is released."""
    revoke_timeout: float = HOOKS_TIMEOUT_MS / 1000
    """How long hooks may take to stop work in order, before another member may begin."""
    leaves: bool = True
    """Leave the group at the end. Otherwise a static member keeps its place for its next start."""
    file: Path | None = None
    webhook: str | None = None
    webhook_secret: bytes | None = None
    command: tuple[str, ...] = ()
    pod_label: str | None = None
    token_file: Path | None = None
    """A token that programs must show."""
    allow_host: tuple[str, ...] = ()
    topic_regex: str = ""
    """Instead of `topics`: a regular expression of RE2 over whole names."""
    topics_debounce: float = 0.0
    priority: int = 0
    preempt_after: float | None = PREEMPT_AFTER_S
    connectors: tuple[str, ...] = ()
    """Instead of `topics`: registered topics that are connectors, with their partitions as tasks."""
    config_offset: Callable[[], int] | None = None
    """How far this worker has read its configuration."""
    scheduled_rebalance_max_delay: float = RETURN_DELAY_S
    topics_except: tuple[str, ...] = ()
    """Topics that `topic_regex` would mean, by names or beginnings."""

    @property
    def works(self) -> bool:
        """Whether it is a worker."""
        return bool(self.topics or self.topic_regex or self.connectors)


def instance_id_of(environment: Mapping[str, str]) -> str | None:
    """A name that survives restarts, from what Kubernetes' downward API puts into the environment.

    A pod's name: StatefulSets give it again to the pod that replaces another, and everywhere it survives the restart
    of a container.
    """
    for variable in ("ROTA_GROUP_INSTANCE_ID", "POD_NAME"):
        if (found := environment.get(variable)) and _INSTANCE_ID.fullmatch(found):
            return found
    return None
