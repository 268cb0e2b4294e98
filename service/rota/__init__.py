"""Rota: Kafka's group protocol for processes that know nothing of Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.client import connect

    __version__: str

__all__ = ["__version__", "connect"]


def __getattr__(name: str) -> Any:
    """`rota.connect` loads the SDK on its first use: `import rota` alone loads nothing. So does `__version__`."""
    if name == "connect":
        from rota.client import connect

        return connect
    if name == "__version__":
        from importlib.metadata import version

        return version("rota")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
