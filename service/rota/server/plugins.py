"""Protocol types and strategies of other packages that are installed beside us."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points

from rota.assignors import ENTRY_POINT_GROUP as STRATEGIES_GROUP
from rota.assignors import BrokenStrategy
from rota.assignors import register_entry_points as register_strategies
from rota.server.http_server import CannotListen
from rota.types import ENTRY_POINT_GROUP, BrokenPlugin, register_entry_points

logger = logging.getLogger(__name__)


def load_plugins() -> None:
    """Register them; raises `CannotListen` for one that is broken: its groups would be served as something else."""
    _load(ENTRY_POINT_GROUP, register_entry_points, "protocol types of other packages")
    _load(STRATEGIES_GROUP, register_strategies, "strategies of other packages")


def _load(group: str, register: Callable[[Iterable[EntryPoint]], list[str]], subject: str) -> None:
    try:
        names = register(entry_points(group=group))
    except (BrokenPlugin, BrokenStrategy, ImportError, AttributeError, TypeError) as error:
        raise CannotListen(f"a plug-in of {group} cannot be loaded: {error}") from error
    if names:
        logger.info(subject, extra={"names": names})
