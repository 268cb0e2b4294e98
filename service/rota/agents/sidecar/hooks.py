"""Hooks, which are notified of changes: a URL, a program, a file, the label of a pod.

Changes are delivered to each hook in order, retried until that succeeds, and never an old one after a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import os
import random
import signal
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

from rota.agents.sidecar.status import Change, Status, environment
from rota.core.membership.backoff import Backoff
from rota.protocol.defaults import BACKOFF_FIRST_MS, HOOK_RETRY_CAP_MS
from rota.protocol.fencing_token import generation_of

_log = logging.getLogger(__name__)


class HookFailed(Exception):
    """The delivery failed; `again` is whether a retry may succeed."""

    def __init__(self, reason: str, *, again: bool = True) -> None:
        super().__init__(reason)
        self.again = again


class Hook(Protocol):
    """A way to notify of a change."""

    @property
    def name(self) -> str: ...

    async def deliver(self, change: Change) -> None:
        """Deliver a change; raise `HookFailed` on failure."""


class Dispatcher:
    """One hook's queue. Every change has the whole status, so an older one is skipped if a newer one waits."""

    def __init__(self, hook: Hook, jitter: Callable[[], float] = random.random) -> None:
        self._hook = hook
        self._jitter = jitter
        self._next: Change | None = None
        self._arrived = asyncio.Event()
        self._settled_number = 0
        self._settled = asyncio.Event()

    def offer(self, change: Change) -> None:
        """Deliver this change next, instead of any that still waits."""
        self._next = change
        self._arrived.set()

    async def settled(self, number: int) -> None:
        """Return when the change of that number, or a later one, was delivered or abandoned."""
        while self._settled_number < number:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> None:
        """Deliver changes until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            change, self._next = self._next, None
            if change is not None:
                await self._deliver(change)

    async def _deliver(self, change: Change) -> None:
        backoff = Backoff(BACKOFF_FIRST_MS, HOOK_RETRY_CAP_MS)
        while self._next is None:
            try:
                await self._hook.deliver(change)
                break
            except Exception as error:
                # No answer of a receiver ends the member.
                failed = error if isinstance(error, HookFailed) else HookFailed(repr(error))
                _log.warning("%s: %s was not delivered: %s", self._hook.name, change.kind, failed)
                if not failed.again:
                    break
            await self._pause(backoff.next_ms(self._jitter()) / 1000)
        self._settled_number = change.number
        self._settled.set()

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, but not if a newer change waits."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return


class CommandHook:
    """A program; its last argument is the kind of the change. A failed run is not repeated: its effect might happen
    twice.
    """

    name = "command"

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s

    async def deliver(self, change: Change) -> None:
        process = await self._start(change)
        try:
            async with asyncio.timeout(self._timeout_s):
                await process.communicate(json.dumps(change.document()).encode())
        except TimeoutError:
            raise HookFailed(f"still ran after {self._timeout_s:g} s and was killed", again=False) from None
        finally:
            # Also kill its remaining processes: the next change may contradict them.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode != 0:
            raise HookFailed(f"ended with {process.returncode}", again=False)

    async def _start(self, change: Change) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *(*self._command, change.kind),
                stdin=asyncio.subprocess.PIPE,
                env={**os.environ, **environment(change.status, change.kind)},
                start_new_session=True,
            )
        except OSError as error:
            raise HookFailed(f"{self._command[0]}: {error.strerror or error}", again=False) from error


class StatusFile:
    """A file that is written at each change, and long before it expires. After `expires_at_ms` the status
    is unknown.
    """

    def __init__(self, path: Path, status: Callable[[], Status], every_s: float) -> None:
        self._path = path
        self._status = status
        self._every_s = every_s
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Write the file until cancelled. It is never removed: it expires by itself, also when the process
        is killed.
        """
        while True:
            self._changed.clear()
            self.write()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._changed.wait()

    def write(self) -> None:
        """Write the current status. A failed write is logged: the old status expires."""
        status = self._status()
        at_ms = time.time_ns() // 1_000_000
        document = {**status.document(), "at_ms": at_ms, "expires_at_ms": at_ms + status.expires_in_ms}
        try:
            self._replace(json.dumps(document) + "\n")
        except OSError as error:
            _log.error("%s cannot be written: %s", self._path, error)

    def _replace(self, text: str) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                os.fchmod(descriptor, 0o644)
                file.write(text)
            os.replace(name, self._path)
        except OSError:
            os.unlink(name)
            raise


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Pod:
    """The address of the cluster's API, and this pod's name."""

    api: str
    namespace: str
    name: str
    account: Path = SERVICE_ACCOUNT

    @classmethod
    def of(cls, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> Pod:
        """Read the variables that Kubernetes sets in every container, and `POD_NAME` of the downward API.

        Raises:
            ValueError: The process is not in a pod, or the pod's name is not known.
        """
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        name = environment.get("POD_NAME")
        if not host or not name:
            raise ValueError("a pod's label needs KUBERNETES_SERVICE_HOST and POD_NAME: is this a pod?")
        namespace = environment.get("POD_NAMESPACE") or (account / "namespace").read_text().strip()
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", namespace, name, account)

    @property
    def url(self) -> str:
        return f"{self.api}/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def trust(self) -> ssl.SSLContext:
        """Return the trust in the cluster's authority; raise `ValueError` if the pod has no file with it."""
        file = self.account / "ca.crt"
        try:
            return ssl.create_default_context(cafile=os.fspath(file))
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror}; has the pod a service account's token?") from error

    def token(self) -> str:
        """Read the token. It is read each time, because it is replaced about every hour."""
        file = self.account / "token"
        try:
            return file.read_text().strip()
        except OSError as error:
            raise HookFailed(f"{file}: {error.strerror}") from error


class PodLabel:
    """Sets `key` to the state: leader, follower, assigned, unknown or draining."""

    name = "pod label"

    def __init__(self, http: httpx.AsyncClient, pod: Pod, key: str) -> None:
        """`http` trusts the cluster's authority, as `pod.trust()` does."""
        self._http = http
        self._pod = pod
        self._key = key

    async def deliver(self, change: Change) -> None:
        patch = {"metadata": {"labels": {self._key: str(change.status.state)}}}
        headers = {"Authorization": f"Bearer {self._pod.token()}", "Content-Type": _MERGE_PATCH}
        try:
            response = await self._http.patch(self._pod.url, json=patch, headers=headers)
        except httpx.TransportError as error:
            raise HookFailed(f"{type(error).__name__}: {error}") from error
        if not response.is_success:
            # Rights may still be granted, but a deleted pod or an invalid label is permanent.
            again = response.status_code not in (400, 404, 422)
            raise HookFailed(f"the API answered {response.status_code}: {response.text[:200]}", again=again)


SIGNATURE_HEADER = "Rota-Signature"
GENERATION_HEADER = "Rota-Generation"
TOKEN_HEADER = "Rota-Fencing-Token"
EVENT_ID_HEADER = "Rota-Event-Id"
_RETRIED = frozenset({408, 425, 429})


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    """`t=<seconds since 1970>,v1=<HMAC-SHA256 in hex of "<seconds>.<body>">`: the time is signed against replays."""
    digest = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


class Webhook:
    """POSTs each change. A 2xx is success; a 4xx is not retried, except 408, 425 and 429."""

    name = "webhook"

    def __init__(
        self, http: httpx.AsyncClient, url: str, secret: bytes | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._http = http
        self._url = url
        self._secret = secret
        self._clock = clock

    async def deliver(self, change: Change) -> None:
        body = json.dumps(change.document(), separators=(",", ":")).encode()
        headers = {
            "Content-Type": "application/json",
            EVENT_ID_HEADER: change.event_id,
            GENERATION_HEADER: str(generation_of(change.status.token)),
            TOKEN_HEADER: str(change.status.token),
        }
        if self._secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._secret, int(self._clock()), body)
        try:
            # The body of the answer is not read, because its size is unbounded.
            async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
                pass
        except httpx.TransportError as error:
            raise HookFailed(f"{type(error).__name__}: {error}") from error
        if not response.is_success:
            again = response.status_code >= 500 or response.status_code in _RETRIED
            raise HookFailed(f"answered {response.status_code}", again=again)
