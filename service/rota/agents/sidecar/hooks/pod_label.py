"""Sets a label of this pod to its state, so that a Service can select the leader.

Needs only `patch` on pods. The label is the state at the time of the write: Kubernetes labels do not expire, so a
Service may point to a former leader for a while. The systems to which it writes must still check the fencing token.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from rota.agents.sidecar.changes import Change
from rota.agents.sidecar.hooks.dispatch import HookFailed

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
