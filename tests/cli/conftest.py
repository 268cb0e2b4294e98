"""One server for all tests of the command line, and a way to run `rota` as a user does."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import uuid
from base64 import b64encode
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import httpx
import pytest

from rota.cli.main import main
from tests.processes.server import Server
from tests.support.processes import rota_command


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    exit_code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Rota:
    """Runs `rota` in a namespace of its own on a running server."""

    url: str
    store_url: str
    namespace: str

    def __call__(self, *arguments: str, **environment: str) -> Done:
        """Run `rota ARGUMENTS` to its end, in this process: a command that sets up nothing for good."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
            patched.setattr(sys, "argv", ["rota", *arguments])
            for name, value in {**self.environment(), **environment}.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        return Done(_exit_code(ended.value), out.getvalue(), err.getvalue())

    def as_process(self, *arguments: str) -> Done:
        """The same in a process of its own."""
        command = [str(rota_command()), *arguments]
        environment = {"PATH": "", **self.environment()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    def environment(self) -> dict[str, str]:
        return {"ROTA_URL": self.url, "ROTA_NAMESPACE": self.namespace, "COLUMNS": "100"}

    def member(self, group_id: str, reason: str = "to work", reads: str = "", instance: str = "") -> str:
        """Make a Stable group with one member, which says why it joins, and which topic it reads; its id."""
        base = f"{self.url}/v1/namespaces/{self.namespace}/groups/{group_id}"
        body = {"protocol_type": "worker", "protocols": [{"name": "range"}], "client_id": "w", "reason": reason}
        if reads:
            metadata = b64encode(json.dumps({"topics": [reads]}).encode()).decode()
            body |= {"protocol_type": "consumer", "protocols": [{"name": "server:range", "metadata": metadata}]}
        if instance:
            body["group_instance_id"] = instance
        with httpx.Client(trust_env=False, timeout=30) as http:
            joined = http.post(f"{base}/join", json=body).json()
            member_id = joined["member_id"]
            if not instance:
                joined = http.post(f"{base}/join", json={**body, "member_id": member_id}).json()
            sync = {"member_id": member_id, "generation_id": joined["generation_id"]}
            if instance:
                sync["group_instance_id"] = instance
            http.post(f"{base}/sync", json=sync).raise_for_status()
        return str(member_id)


@pytest.fixture
def rota(shared_server: Server) -> Rota:
    return Rota(shared_server.url, shared_server.store_url, f"test-{uuid.uuid4().hex[:8]}")


def _exit_code(ended: SystemExit) -> int:
    assert ended.code is None or isinstance(ended.code, int), ended.code
    return ended.code or 0
