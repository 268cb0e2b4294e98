"""Putting the guard together, with what keeps it up to date for as long as the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rota.core.access.document import InvalidAccess
from rota.core.replica.ports import StoreUnavailable
from rota.server.access.authenticator import ServerAuthenticator
from rota.server.access.files import AccessFile
from rota.server.access.guard import Guard
from rota.server.access.issuers import IssuedTokens, ReviewBudget
from rota.server.access.tokens import Tokens
from rota.server.http_server import CannotListen
from rota.server.observability.metrics import Metrics
from rota.server.settings import Settings
from rota.storage.store import SqlStore

COUNT_EVERY_S = 2.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_guard(settings: Settings, store: SqlStore, metrics: Metrics) -> AsyncIterator[Guard | None]:
    """The guard that the settings require; None where every caller may do everything. Raises `CannotListen`."""
    if settings.is_open_to_all:
        _log.warning("every caller that reaches this server may do everything: no access_file is set")
    if settings.access_file is None:
        yield None
        return
    try:
        policy = AccessFile(settings.access_file)
        tokens = Tokens(store, settings.access_tokens_file)
    except InvalidAccess as error:
        raise CannotListen(f"access: {error}") from error
    bearers = IssuedTokens(policy, ReviewBudget(settings.budgets, metrics.over_budget))
    authenticator = ServerAuthenticator(policy, tokens, bearers)
    guard = Guard(authenticator, settings.limits)
    guard.meters.refused = metrics.over_quota
    works = (tokens.keep_reading(), _keep_counting(guard, store), guard.open_work.keep_sweeping())
    running = [asyncio.create_task(work) for work in works]
    try:
        yield guard
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await authenticator.close()


async def _keep_counting(guard: Guard, store: SqlStore) -> None:
    """Read the store's usage for the namespaces with a storage quota."""
    while True:
        for namespace, counts_bytes in guard.meters.to_look_at().items():
            try:
                guard.meters.look(namespace, await store.read_stored(namespace, counts_bytes=counts_bytes))
            except StoreUnavailable as error:
                _log.warning("a namespace cannot be counted", extra={"namespace": namespace, "why": str(error)})
        await asyncio.sleep(COUNT_EVERY_S)
