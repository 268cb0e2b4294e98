"""A plugin of pytest for runs that mutmut forks: they share a Postgres, and no cached statement hides a mutant."""

from __future__ import annotations

import os
import sys
from itertools import count
from typing import Any

import pytest

from tests.support.postgres import PostgresServer

_SHARED = ("postgres_server", "postgres_template", "sqlite_template", "bank_template")
_made: dict[str, Any] = {}
"""The shared fixtures by name: mutmut's own process makes them in its first run, and every fork has them."""


@pytest.fixture(autouse=True)
def new_statements() -> None:
    """Forget the statements that the process has built: mutmut's own process has run all tests before it forks."""
    for name, module in list(sys.modules.items()):
        if name.startswith("rota.storage."):
            for value in vars(module).values():
                getattr(value, "cache_clear", int)()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Any:
    """Return what an earlier run has made. The server ends with mutmut's own process."""
    name = fixturedef.argname
    if name not in _SHARED:
        return None
    if name == "postgres_server":
        server = _made.setdefault(name, None) or PostgresServer(durable=False)
        if _made[name] is None:
            server.start()
            _made[name] = server
        server._names = count(1_000 * os.getpid())
    elif name not in _made:
        _made[name] = fixturedef.func(**{each: request.getfixturevalue(each) for each in fixturedef.argnames})
    fixturedef.cached_result = (_made[name], fixturedef.cache_key(request), None)
    return _made[name]
