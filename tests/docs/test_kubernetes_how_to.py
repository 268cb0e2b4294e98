"""docs/how-to/kubernetes.md: its commands run, clusters would take its objects, and its sidecars lead and share."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rota.cli.commands import app
from rota.core.access.document import read_document
from tests.access.certificates import Authority
from tests.deploy.kubelet import Pod
from tests.deploy.kubernetes import NEWEST, SIDECARS, Manifest, containers, find, pod_templates, problems, render
from tests.deploy.stand_in import put_on_path
from tests.processes.server import Server
from tests.support.processes import Process, Processes, rota_command

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def server(processes: Processes, tmp_path: Path) -> Server:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    server.start_and_wait()
    return server


@pytest.fixture
def cluster(server: Server, tmp_path: Path) -> Path:
    """What the cluster would hold after all blocks of the page were run, in their order."""
    work, cluster = tmp_path / "work", tmp_path / "cluster"
    work.mkdir()
    cluster.mkdir()
    (work / "helm").symlink_to(ROOT / "helm")
    path = f"{put_on_path(tmp_path / 'bin')}:{rota_command().parent}:{os.environ['PATH']}"
    environment = {**os.environ, "CLUSTER": str(cluster), "PATH": path, "ROTA_URL": server.url}
    for language, text in BLOCK.findall(PAGE):
        match language:
            case "yaml":
                _save(work, text)
            case "sh":
                command = ["bash", "-euo", "pipefail", "-c", text]
                done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            case other:
                assert other == "text", f"a block in {other} that nobody runs"
    return cluster


def test_clusters_accept_the_manifest_and_the_pages_values(tmp_path: Path) -> None:
    for language, text in BLOCK.findall(PAGE):
        if language == "yaml":
            _save(tmp_path, text)
    plain = list(yaml.safe_load_all((tmp_path / "billing.yaml").read_text()))
    certificates = list(yaml.safe_load_all((tmp_path / "certificates.yaml").read_text()))
    release = render(*(tmp_path / f"{name}-values.yaml" for name in ("rota", "access", "pipeline")))
    rules = tomllib.loads(find(release, "ConfigMap")["data"]["access.toml"])

    for version in (SIDECARS, NEWEST):
        assert [problem for one in (*plain, *certificates, *release) for problem in problems(one, version)] == []
    assert {one["kind"] for one in release} >= {"Deployment", "NetworkPolicy", "CronJob"}
    assert len(read_document(rules).rules) == 3


@pytest.mark.slow
def test_the_pages_release_is_complete_and_its_sidecars_lead(
    cluster: Path, server: Server, processes: Processes, tmp_path: Path
) -> None:
    everything = [one for path in sorted(cluster.iterdir()) for one in yaml.safe_load_all(path.read_text()) if one]

    for version in (SIDECARS, NEWEST):
        assert [problem for one in everything for problem in problems(one, version)] == []
    assert _missing_secrets(everything) == []
    for _, pod in pod_templates(everything):
        for container in containers(pod):
            if "args" in container:
                parsed = CliRunner().invoke(app, [*container["args"], "--help"])
                assert parsed.exit_code == 0, parsed.output

    template = find(everything, "Deployment", "billing")["spec"]["template"]
    first, second = _pods(template, ("billing-a", "billing-b"), server, processes, tmp_path)
    (leader, writing), (follower, waiting) = _start_with_program(first), _start_with_program(second)
    token = int(writing.wait_for_line(r"^writing with token (\d+) ")[1])
    # The program ends first, then its sidecar: as a kubelet stops a pod.
    assert writing.terminate() == 0
    assert leader.terminate() == 0
    assert int(waiting.wait_for_line(r"^writing with token (\d+) ")[1]) > token
    assert follower.running

    template = find(everything, "StatefulSet", "indexers")["spec"]["template"]
    (sidecar,) = template["spec"]["initContainers"]
    sidecar["args"].remove("--pod-label=rota.example/state")  # That asks the cluster's API.
    indexers = list(_pods(template, ("indexers-0", "indexers-1"), server, processes, tmp_path))
    running = [_start(pod) for pod in indexers]
    running[0].wait_until(lambda: sorted(map(_held, indexers)) == [6, 6], "12 partitions, shared")


def _pods(
    template: Manifest, names: tuple[str, ...], server: Server, processes: Processes, folder: Path
) -> Iterator[Pod]:
    elsewhere = {"http://rota:8080": server.url, "https://rota.prod.svc:8080": server.url}
    config_maps = {"internal-ca": {"ca.crt": Authority(folder).file.read_text()}}
    for name in names:
        yield Pod(template, processes, folder, name=name, config_maps=config_maps, elsewhere=elsewhere, loopback=[4040])


def _start(pod: Pod) -> Process:
    addresses = {"ROTA_SIDECAR_HTTP": 4040, "ROTA_SIDECAR_PROBES": 4041}
    return pod.run("rota-sidecar", **{name: f"127.0.0.1:{pod.port(port)}" for name, port in addresses.items()})


def _start_with_program(pod: Pod) -> tuple[Process, Process]:
    sidecar = _start(pod)
    sidecar.wait_for_url(pod.probe("rota-sidecar", "startup"))
    return sidecar, pod.run("billing")


def _held(pod: Pod) -> int:
    """How many partitions the status file says; it is written once there is something to say."""
    path = pod.path("indexer", "/var/run/rota/status.json")
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return sum(len(of_topic["partitions"]) for of_topic in document.get("assignment") or ())


def _save(folder: Path, text: str) -> None:
    """A block says in its first line which file it is."""
    name = text.splitlines()[0].removeprefix("# ")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _missing_secrets(manifests: list[Manifest]) -> list[str]:
    """Keys that pods ask for and that no command of the page has made."""
    made = {
        f"{one['metadata']['name']}/{key}"
        for one in manifests
        if one["kind"] == "Secret"
        for key, value in one["data"].items()
        if base64.b64decode(value)
    }
    for certificate in (one["spec"] for one in manifests if one["kind"] == "Certificate"):
        made |= {f"{certificate['secretName']}/{key}" for key in ("tls.crt", "tls.key", "ca.crt")}
    asked = set()
    for _, pod in pod_templates(manifests):
        for container in containers(pod):
            refs = [variable.get("valueFrom", {}).get("secretKeyRef") for variable in container.get("env", ())]
            asked |= {f"{ref['name']}/{ref['key']}" for ref in refs if ref}
        for volume in pod["spec"].get("volumes", ()):
            if secret := volume.get("secret"):
                items = secret.get("items", [{"key": "tls.crt"}, {"key": "tls.key"}])
                asked |= {f"{secret['secretName']}/{item['key']}" for item in items}
    assert asked
    return sorted(asked - made)
