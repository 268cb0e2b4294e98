"""The life of a sidecar: join, answer, notify the hooks; at the end release the share in order, then exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import uvicorn
from starlette.types import ASGIApp

from rota.agents.sidecar.app import SidecarApp, probes
from rota.agents.sidecar.gate import Gate
from rota.agents.sidecar.hooks import CommandHook, Dispatcher, Hook, Pod, PodLabel, StatusFile, Webhook
from rota.agents.sidecar.listening import bound, bound_or_none, url_of
from rota.agents.sidecar.membership import ElectionMembership, Membership, PoolMembership, Progress
from rota.agents.sidecar.settings import SidecarSettings
from rota.agents.sidecar.status import Change, Changes
from rota.client import Client
from rota.client.stop_deadline import Step
from rota.protocol.defaults import HOOKS_TIMEOUT_MS
from rota.server.http.connection import HttpConfig

_log = logging.getLogger(__name__)


async def serve(client: Client, settings: SidecarSettings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        CoordinatorError: The coordinator refuses this member for good.
        CannotListen: An address is taken.
        ValueError: A hook cannot work here.
    """
    stop = asyncio.Event()
    with _signals(stop), bound(settings.http) as http, bound_or_none(settings.probes) as probed:
        changes = Changes(f"{time.time_ns() // 1_000_000:x}")
        async with _hooks(settings) as hooks, asyncio.TaskGroup() as tasks:
            runner = HookRunner(hooks, settings.revoke_timeout)
            membership_type = ElectionMembership if settings.shared is None else PoolMembership
            membership = membership_type(client, settings, changes, runner.settled)
            background = [tasks.create_task(runner.run(changes))]
            background += [tasks.create_task(dispatcher.run()) for dispatcher in hooks]
            try:
                await _take_part(membership, changes, settings, stop, http, probed)
            finally:
                for task in background:
                    task.cancel()


async def _take_part(
    membership: Membership,
    changes: Changes,
    settings: SidecarSettings,
    stop: asyncio.Event,
    http: socket.socket,
    probed: socket.socket | None,
) -> None:
    progress = Progress(membership, settings.progress_timeout)
    servers = [_Server(Gate(SidecarApp(membership, changes, progress).asgi(), settings), http)]
    if probed is not None:
        servers.append(_Server(probes(membership), probed))
    async with membership.block, asyncio.TaskGroup() as tasks:
        membership.announce()
        serving = [tasks.create_task(server.serve(sockets=[server.bound])) for server in servers]
        chores = [tasks.create_task(membership.run()), tasks.create_task(progress.run())]
        file = None
        if settings.file is not None:
            # It is renewed so often that it expires only if the renewal stops.
            file = StatusFile(settings.file, membership.status, settings.session_timeout / 6)
            chores += [tasks.create_task(file.run()), tasks.create_task(_touch(file, changes))]
        _log.info("listening on %s", url_of(http))
        await stop.wait()
        # The share is released before all other parts stop.
        await membership.stop(settings.revoke_timeout)
        if file is not None:
            file.write()
        changes.end()
        for server in servers:
            server.config.timeout_graceful_shutdown = min(1, int(membership.member._deadline.left_s(Step.END)))
            server.should_exit = True
        await asyncio.gather(*serving)
        for chore in chores:
            chore.cancel()


async def _touch(file: StatusFile, changes: Changes) -> None:
    async for _ in changes.listen():
        file.changed()


class HookRunner:
    """Passes every change to every hook, and waits for them before a share is released in order."""

    def __init__(self, hooks: list[Dispatcher], patience_s: float) -> None:
        self._hooks = hooks
        self._patience_s = patience_s

    async def run(self, changes: Changes) -> None:
        async for change in changes.listen():
            for hook in self._hooks:
                hook.offer(change)

    async def settled(self, change: Change) -> None:
        """Wait until the hooks are notified of it, at most for their timeout."""
        try:
            async with asyncio.timeout(self._patience_s):
                await asyncio.gather(*(hook.settled(change.number) for hook in self._hooks))
        except TimeoutError:
            _log.warning("the hooks were not notified of %r within %g s", change.kind, self._patience_s)


@asynccontextmanager
async def _hooks(settings: SidecarSettings) -> AsyncIterator[list[Dispatcher]]:
    async with AsyncExitStack() as stack:
        hooks: list[Hook] = []
        if settings.webhook is not None:
            http = await stack.enter_async_context(_http())
            hooks.append(Webhook(http, settings.webhook, settings.webhook_secret))
        if settings.command:
            hooks.append(CommandHook(settings.command, settings.revoke_timeout))
        if settings.pod_label is not None:
            pod = Pod.of(os.environ)
            http = await stack.enter_async_context(_http(pod))
            hooks.append(PodLabel(http, pod, settings.pod_label))
        yield [Dispatcher(hook) for hook in hooks]


def _http(pod: Pod | None = None) -> httpx.AsyncClient:
    # A proxy of the environment is not used.
    return httpx.AsyncClient(
        timeout=HOOKS_TIMEOUT_MS / 1000, trust_env=False, verify=True if pod is None else pod.trust()
    )


class _Server(uvicorn.Server):
    """The server: this program handles signals, and logs only errors."""

    def __init__(self, app: ASGIApp, bound: socket.socket) -> None:
        self.bound = bound
        super().__init__(HttpConfig(app))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
