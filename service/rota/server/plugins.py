"""Protocol types and strategies of other installed packages."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import EntryPoint, entry_points

from rota.core.assignors import ENTRY_POINT_GROUP as STRATEGIES_GROUP
from rota.core.assignors import BrokenStrategy
from rota.core.assignors import register_entry_points as register_strategies
from rota.core.types import ENTRY_POINT_GROUP, BrokenPlugin, register_entry_points
from rota.server.http_server import CannotListen

FAILURE_EVERY_S = 60.0
"""Interval of log lines about a function that keeps failing: a client's bytes may make it fail any number of times."""

logger = logging.getLogger(__name__)


class PluginFailures:
    """Logs exceptions of plug-ins' functions; the core continues without their results."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds."""
        self._clock = clock
        self._due: dict[str, float] = {}
        self._times: Counter[str] = Counter()
        """Number of failures of each function since its last line."""

    def report(self, function: str, error: Exception) -> None:
        """Report a failure: see `rota.core.types.plugin.Report`."""
        now_s = self._clock()
        self._times[function] += 1
        if now_s < self._due.get(function, now_s):
            return
        self._due[function] = now_s + FAILURE_EVERY_S
        logger.warning(
            "a plug-in's function raised: %r; its group continues without it",
            error,
            exc_info=error,
            extra={"function": function, "times": self._times.pop(function)},
        )


def load_plugins() -> None:
    """Register the plug-ins; raise `CannotListen` for a broken one: its groups would be served as another type."""
    register = partial(register_entry_points, report=PluginFailures().report)
    _load(ENTRY_POINT_GROUP, register, "protocol types of other packages")
    _load(STRATEGIES_GROUP, register_strategies, "strategies of other packages")


def _load(group: str, register: Callable[[Iterable[EntryPoint]], list[str]], subject: str) -> None:
    try:
        names = register(entry_points(group=group))
    except (BrokenPlugin, BrokenStrategy, ImportError, AttributeError, TypeError) as error:
        raise CannotListen(f"a plug-in of {group} cannot be loaded: {error}") from error
    if names:
        logger.info(subject, extra={"names": names})
