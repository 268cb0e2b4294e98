"""Protocol types of other packages that are installed beside us."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

from rota.server.http_server import CannotListen
from rota.types import ENTRY_POINT_GROUP, BrokenPlugin, register_entry_points

logger = logging.getLogger(__name__)


def load_protocol_types() -> None:
    """Register them; raises `CannotListen` for one that is broken: its groups would be served as something else."""
    try:
        names = register_entry_points(entry_points(group=ENTRY_POINT_GROUP))
    except (BrokenPlugin, ImportError, AttributeError) as error:
        raise CannotListen(f"a plug-in of {ENTRY_POINT_GROUP} cannot be loaded: {error}") from error
    if names:
        logger.info("protocol types of other packages", extra={"names": names})
