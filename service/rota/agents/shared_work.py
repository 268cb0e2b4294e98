"""The work that the members of a group share: partitions of topics, or connectors and their tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rota.client import Client, ConnectWorker, Consumer
from rota.client.options import RETURN_DELAY_S
from rota.core.types.topics import topic_regex


@dataclass(frozen=True, slots=True)
class SharedWork:
    """One of `topics`, `topic_regex` and `connectors`, with its options. Times are seconds."""

    topics: tuple[str, ...] = ()
    strategy: str = "cooperative-sticky"
    topic_regex: str = ""
    """An RE2 expression for whole names of topics."""
    topics_debounce: float = 0.0
    topics_except: tuple[str, ...] = ()
    """Topics to exclude from `topic_regex`, by name or prefix."""
    connectors: tuple[str, ...] = ()
    """Registered topics that are connectors, with their partitions as tasks."""
    config_offset: Callable[[], int] | None = None
    """This worker's position in its configuration."""
    scheduled_rebalance_max_delay: float = RETURN_DELAY_S

    def member(self, client: Client, group_id: str, **options: Any) -> Consumer | ConnectWorker:
        """Create a member that shares this work, with further options of both kinds."""
        if self.connectors:
            return client.connect_worker(
                group_id,
                connectors=self.connectors,
                config_offset=self.config_offset,
                scheduled_rebalance_max_delay=self.scheduled_rebalance_max_delay,
                **options,
            )
        return client.consumer(
            group_id,
            topic_regex(self.topic_regex) if self.topic_regex else list(self.topics),
            self.strategy,
            topics_debounce=self.topics_debounce,
            topics_except=self.topics_except,
            **options,
        )
