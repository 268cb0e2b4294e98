"""Rota: Kafka's group protocol for processes that know nothing of Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.client import connect

__all__ = ["connect"]


def __getattr__(name: str) -> Any:
    """`rota.connect` brings the SDK along when it is first asked for: whoever imports `rota` alone pays nothing."""
    if name == "connect":
        from rota.client import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
