"""The routes of an application, with those of the routers that it includes."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Route


def routes_of(app: FastAPI | APIRouter) -> Iterator[Route]:
    """Each route with its path and methods."""
    return _routes_in(app.routes)


def _routes_in(routes: list[BaseRoute]) -> Iterator[Route]:
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from _routes_in(included.routes)
        elif isinstance(route, Route):
            yield route
