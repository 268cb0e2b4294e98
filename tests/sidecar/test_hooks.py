"""Hooks notify other programs: in order, again where it failed, signed, and never an old change after a new one."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
import sys
import time
from pathlib import Path

import httpx
import pytest
import trustme

from rota.agents.sidecar.hooks import CommandHook, Dispatcher, HookFailed, Pod, PodLabel, StatusFile, Webhook
from rota.agents.sidecar.status import Change, State, Status
from rota.protocol.fencing_token import fencing_token
from tests.sidecar.sidecars import Received, Receiver, Sidecars
from tests.support.ports import free_port

SECRET = b"correct horse"


def change(number: int, kind: str = "elected", state: State = State.LEADER) -> Change:
    return Change("boot", number, kind, 1_000, Status("billing", state, "pod-0", True, "pod-0-x", number, (), 900))


# --- in order, and again -------------------------------------------------------------------------------


class Recorder:
    """A hook that fails a given number of times, and notes its calls."""

    name = "recorder"

    def __init__(self, failures: int = 0, *, again: bool = True) -> None:
        self.reported: list[int] = []
        self.failures = failures
        self.again = again
        self.called = asyncio.Event()

    async def deliver(self, change: Change) -> None:
        self.reported.append(change.number)
        self.called.set()
        if self.failures:
            self.failures -= 1
            raise HookFailed("not now", again=self.again)


async def delivered(hook: Recorder, *changes: Change) -> None:
    """Offer changes one after the other, each once the one before was tried; return once the last is settled."""
    dispatcher = Dispatcher(hook, jitter=lambda: 0.1)
    running = asyncio.create_task(dispatcher.run())
    async with asyncio.timeout(60):
        for each in changes:
            hook.called.clear()
            dispatcher.offer(each)
            await hook.called.wait()
        await dispatcher.settled(changes[-1].number)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_old_change_is_dropped_once_a_newer_one_exists() -> None:
    hook = Recorder(failures=2)

    await delivered(hook, change(1), change(2))

    assert hook.reported == sorted(hook.reported)
    assert hook.reported[-1] == 2


# --- webhook -------------------------------------------------------------------------------------------


def is_signed(got: Received) -> bool:
    """As a receiver checks it."""
    at, _, digest = got.headers["rota-signature"].partition(",v1=")
    signed = f"{at.removeprefix('t=')}.".encode() + got.body
    return hmac.compare_digest(hmac.new(SECRET, signed, hashlib.sha256).hexdigest(), digest)


async def test_a_webhook_is_signed_and_names_its_generation() -> None:
    with Receiver(lambda got: 204) as receiver:
        async with httpx.AsyncClient(trust_env=False) as http:
            await Webhook(http, f"http://127.0.0.1:{receiver.port}/hook", SECRET).deliver(change(fencing_token(7)))

    (got,) = receiver.received
    assert is_signed(got)
    token = fencing_token(7)
    assert (got.path, got.headers["rota-generation"], got.headers["rota-fencing-token"]) == ("/hook", "7", f"{token}")
    assert (got.json()["change"], got.json()["fencing_token"]) == ("elected", token)
    assert got.headers["rota-event-id"] == f"boot-{token}"
    body = got.body.replace(b'"fencing_token":%d' % token, b'"fencing_token":%d' % (token + 1))
    forged = Received(got.method, got.path, got.headers, body)
    assert not is_signed(forged)


@pytest.mark.parametrize(("answer", "again"), [(503, True), (429, True), (404, False)])
async def test_a_rejected_webhook_is_repeated_where_that_may_help(answer: int, again: bool) -> None:
    with Receiver(lambda got: answer) as receiver:
        async with httpx.AsyncClient(trust_env=False) as http:
            with pytest.raises(HookFailed) as failed:
                await Webhook(http, f"http://127.0.0.1:{receiver.port}/", None).deliver(change(1))

    assert failed.value.again is again
    assert "rota-signature" not in receiver.received[0].headers


@pytest.mark.processes
def test_a_sidecar_notifies_all_hooks_in_order_of_generations(sidecars: Sidecars) -> None:
    answers = iter([503, 503])
    secret, log, file = (sidecars.folder / name for name in ("secret", "log", "status.json"))
    secret.write_bytes(SECRET + b"\n")
    script = sidecars.folder / "hook.py"
    script.write_text(
        "import os, sys; open(sys.argv[1], 'a').write(sys.argv[2] + os.environ['ROTA_FENCING_TOKEN'] + '\\n')"
    )
    with Receiver(lambda got: next(answers, 204)) as receiver:
        sidecar = sidecars.start(
            *("--webhook", f"http://127.0.0.1:{receiver.port}/", "--webhook-secret-file", secret),
            *("--exec", f"{sys.executable} {script} {log}", "--file", file),
        )
        sidecar.get("/wait?for=leader&timeout=20")
        sidecar.process.wait_until(lambda: log.exists() and len(receiver.received) >= 3, "both hooks told")
        held = json.loads(file.read_text())
        sidecar.post("/resign?pause_ms=0")
        sidecar.get("/wait?for=leader&timeout=20")
        assert sidecar.process.terminate() == 0

    assert (held["state"], held["self"]) == ("leader", True)
    assert held["expires_at_ms"] > held["at_ms"]
    at_the_end = json.loads(file.read_text())
    assert (at_the_end["state"], at_the_end["name"], at_the_end["expires_in_ms"]) == ("draining", "", 0)
    assert all(map(is_signed, receiver.received))
    numbers = [int(got.json()["id"].rpartition("-")[2]) for got in receiver.received]
    assert numbers == sorted(numbers)
    assert len(numbers) > len(set(numbers)), "a delivery that failed is repeated"
    kinds = [line.rstrip("0123456789") for line in log.read_text().splitlines()]
    # A newer state takes the place of one that has not been delivered, such as the first one, which is unknown.
    assert kinds[kinds.index("elected") :][:2] == ["elected", "revoked"]
    assert kinds[-1] == "draining"


@pytest.mark.processes
def test_hooks_get_an_unknown_state_at_a_start_without_a_server(sidecars: Sidecars) -> None:
    file, log = sidecars.folder / "state.json", sidecars.folder / "states"
    file.write_text('{"state": "leader"}')
    with Receiver(lambda _: 204) as receiver:
        sidecar = sidecars.start(
            *("--webhook", f"http://127.0.0.1:{receiver.port}/", "--exec", f"sh -c 'echo $ROTA_STATE >> {log}'"),
            *("--file", file),
            url=f"http://127.0.0.1:{free_port()}",
        )
        sidecar.process.wait_until(lambda: bool(receiver.received) and log.exists(), "both hooks notified")
        states = [
            receiver.received[0].json()["state"],
            log.read_text().split()[0],
            json.loads(file.read_text())["state"],
        ]
        sidecar.process.terminate()

    assert states == ["unknown", "unknown", "unknown"]


# --- program -------------------------------------------------------------------------------------------


async def test_a_program_is_notified_by_argument_environment_and_input(tmp_path: Path) -> None:
    script = (
        "import json, os, sys; from pathlib import Path; name = json.load(sys.stdin)['name'];"
        "Path(sys.argv[1]).write_text(json.dumps([sys.argv[2], os.environ['ROTA_STATE'], name]))"
    )

    await CommandHook([sys.executable, "-c", script, str(tmp_path / "told")], 10).deliver(change(1))

    assert json.loads((tmp_path / "told").read_text()) == ["elected", "leader", "pod-0"]


async def test_a_hanging_program_is_killed_and_a_failed_one_not_rerun(tmp_path: Path) -> None:
    with pytest.raises(HookFailed, match="killed") as hung:
        await CommandHook(["sleep", "60", ";"][:2], 0.2).deliver(change(1, kind="60"))
    with pytest.raises(HookFailed, match="ended with 3") as failed:
        await CommandHook(["sh", "-c", "exit 3"], 10).deliver(change(1))
    with pytest.raises(HookFailed, match="No such file") as missing:
        await CommandHook([str(tmp_path / "missing")], 10).deliver(change(1))

    assert [error.value.again for error in (hung, failed, missing)] == [False, False, False]


# --- file ----------------------------------------------------------------------------------------------


async def test_the_file_is_replaced_whole_before_it_expires(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    file = StatusFile(path, lambda: Status("billing", State.LEADER, "pod-0", True, "x", 7, (), 900), 0.01)
    running = asyncio.create_task(file.run())
    seen: set[int] = set()

    async with asyncio.timeout(60):
        while len(seen) < 5:
            await asyncio.sleep(0.001)
            if path.exists():
                document = json.loads(path.read_text())
                assert document["expires_at_ms"] == document["at_ms"] + 900
                seen.add(document["at_ms"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert max(seen) <= time.time() * 1000
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    StatusFile(tmp_path / "missing" / "status.json", lambda: change(1).status, 1).write()

    assert list(tmp_path.iterdir()) == []


# --- pod label -----------------------------------------------------------------------------------------


class Cluster:
    """The part of the Kubernetes API that patches pods, over TLS, for callers with a token that may patch this pod."""

    def __init__(self, folder: Path) -> None:
        self.account = folder / "account"
        self.account.mkdir()
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.account / "ca.crt")
        (self.account / "token").write_text("token-1\n")
        (self.account / "namespace").write_text("shop")
        self.labels: dict[str, str | None] = {"app": "web"}
        self.receiver = Receiver(self._patch)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self.receiver.server.socket = context.wrap_socket(self.receiver.server.socket, server_side=True)

    def pod(self) -> Pod:
        port = str(self.receiver.port)
        reported = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port, "POD_NAME": "web-0"}
        return Pod.of(reported, self.account)

    def _patch(self, got: Received) -> int:
        if got.headers.get("authorization") != f"Bearer {(self.account / 'token').read_text().strip()}":
            return 401
        if got.headers["content-type"] != "application/merge-patch+json":
            return 415
        if got.path != "/api/v1/namespaces/shop/pods/web-0":
            return 404
        self.labels.update(got.json()["metadata"]["labels"])
        return 200


async def test_the_label_follows_the_state_with_the_tokens_of_the_pod(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    with cluster.receiver:
        pod = cluster.pod()
        async with httpx.AsyncClient(trust_env=False, verify=pod.trust()) as http:
            label = PodLabel(http, pod, "rota.dev/billing")
            await label.deliver(change(1))
            elected = dict(cluster.labels)
            (cluster.account / "token").write_text("token-2\n")
            await label.deliver(change(2, "lost", State.UNKNOWN))

    assert elected == {"app": "web", "rota.dev/billing": "leader"}
    assert cluster.labels == {"app": "web", "rota.dev/billing": "unknown"}


async def test_labels_of_a_gone_pod_end_and_missing_rights_may_come(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    with cluster.receiver:
        pod = cluster.pod()
        gone = Pod(pod.api, pod.namespace, "web-1", pod.account)
        async with httpx.AsyncClient(trust_env=False, verify=pod.trust()) as http:
            with pytest.raises(HookFailed, match="404") as missing:
                await PodLabel(http, gone, "role").deliver(change(1))
            (stale := tmp_path / "stale").mkdir()
            (stale / "token").write_text("of yesterday")
            with pytest.raises(HookFailed, match="401") as refused:
                await PodLabel(http, Pod(pod.api, "shop", "web-0", stale), "role").deliver(change(1))

    assert (missing.value.again, refused.value.again) == (False, True)


async def test_a_label_without_a_token_is_tried_again(tmp_path: Path) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        label = PodLabel(http, Pod("https://127.0.0.1:1", "shop", "web-0", tmp_path), "role")
        with pytest.raises(HookFailed, match="token: No such file") as failed:
            await label.deliver(change(1))
    assert failed.value.again


def test_a_pod_without_the_clusters_authority_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ca\.crt: No such file"):
        Pod("https://127.0.0.1:1", "shop", "web-0", tmp_path).trust()
