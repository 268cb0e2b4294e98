"""Putting the guard together, with what keeps it up to date for as long as the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rota.access.document import InvalidAccess
from rota.access.rules import Caller
from rota.api.access.guard import Guard
from rota.observability.metrics import Metrics
from rota.replica.ports import StoreUnavailable
from rota.server.access.authenticator import Bearers, Refused, ServerAuthenticator, Tokens
from rota.server.access.policy import AccessFile
from rota.server.access.stored_tokens import StoredTokens
from rota.server.access.token_files import TokenFile
from rota.server.http_server import CannotListen
from rota.server.settings import Settings
from rota.storage import SqlStore

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
        stored, files = StoredTokens(store), list[Tokens]()
        if settings.access_tokens_file is not None:
            files.append(TokenFile(settings.access_tokens_file))
    except InvalidAccess as error:
        raise CannotListen(f"access: {error}") from error
    authenticator = ServerAuthenticator(policy, [*files, stored], _bearers(policy, settings, metrics))
    guard = Guard(authenticator, settings.limits)
    guard.meters.refused = metrics.over_quota
    works = (stored.keep_looking(), _keep_counting(guard, store), guard.open_work.keep_sweeping())
    running = [asyncio.create_task(work) for work in works]
    try:
        yield guard
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await authenticator.close()


def _bearers(policy: AccessFile, settings: Settings, metrics: Metrics) -> Bearers:
    try:
        from rota.server.access.bearers import IssuedTokens
        from rota.server.access.reviews import ReviewBudget
    except ImportError as error:
        if policy.document.issuers:
            raise CannotListen(f"issuers need `pip install 'rota[auth]'` ({error})") from error
        return _NoIssuers()
    return IssuedTokens(policy, ReviewBudget(settings.budgets, metrics.over_budget))


class _NoIssuers:
    """What checks JWTs is not installed."""

    async def caller_of(self, _token: str) -> Caller:
        raise Refused("this server knows no issuers of tokens")

    async def close(self) -> None:
        return


async def _keep_counting(guard: Guard, store: SqlStore) -> None:
    """Read the store's usage for the namespaces with a storage quota."""
    while True:
        for namespace, counts_bytes in guard.meters.to_look_at().items():
            try:
                guard.meters.look(namespace, await store.read_stored(namespace, counts_bytes=counts_bytes))
            except StoreUnavailable as error:
                _log.warning("a namespace cannot be counted", extra={"namespace": namespace, "why": str(error)})
        await asyncio.sleep(COUNT_EVERY_S)
