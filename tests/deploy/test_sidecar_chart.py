"""The library chart: a user's chart depends on it, and the sidecar that it renders leads, notifies and gives way."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rota.cli.commands import app
from tests.deploy.kubelet import Pod
from tests.deploy.kubernetes import (
    NEWEST,
    REPOSITORY,
    SIDECARS,
    ChartRefused,
    Manifest,
    find,
    problems,
    render,
    run_helm,
)
from tests.processes.server import Server
from tests.support.processes import Process, Processes

SIDECAR = REPOSITORY / "helm" / "rota-sidecar"
LEADS = {"lead": "billing"}
WORKS = {
    "work": "indexers",
    "topics": ["documents", "images"],
    "namespace": "search",
    "strategy": "sticky",
    "sessionTimeoutMs": 6000,
    "progressTimeoutMs": 60000,
    "revokeTimeoutMs": 1500,
    "audience": "rota",
    "ca": "internal-ca",
    "certificate": "worker-tls",
    "file": "status.json",
    "webhook": "http://127.0.0.1:9000/changed",
    "podLabel": "rota.example/state",
    "ready": True,
    "waits": False,
    "extraArgs": ["--no-leave"],
    "env": [{"name": "ROTA_EXEC", "value": "/bin/true"}],
    "imagePullPolicy": "Always",
    "securityContext": {"runAsUser": 1000},
    "resources": {"limits": {"memory": "128Mi"}},
}


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's chart, with the library as its dependency, taken in by Helm itself."""
    copy = tmp_path_factory.mktemp("repository")
    shutil.copytree(SIDECAR, copy / "helm" / "rota-sidecar")
    app = copy / "tests" / "deploy" / "charts" / "app"
    shutil.copytree(REPOSITORY / "tests" / "deploy" / "charts" / "app", app)
    run_helm("dependency", "build", app)
    return app


def rendered(chart: Path, options: dict[str, Any], version: str = NEWEST, major: str = "4") -> list[Manifest]:
    return render(chart=chart, values={"sidecar": options}, version=version, major=major)


def sidecar_of(manifests: list[Manifest]) -> Manifest:
    (container,) = find(manifests, "Deployment", "app")["spec"]["template"]["spec"]["initContainers"]
    assert isinstance(container, dict)
    return container


@pytest.mark.parametrize("options", [LEADS, WORKS], ids=["leads", "works"])
def test_it_is_a_native_sidecar_that_clusters_take(chart: Path, options: dict[str, Any]) -> None:
    for version, major in ((SIDECARS, "3"), (NEWEST, "4")):
        manifests = rendered(chart, options, version, major)

        assert [problem for one in manifests for problem in problems(one, version)] == []
        assert sidecar_of(manifests)["restartPolicy"] == "Always"


def test_every_option_becomes_one_of_rota_sidecar(chart: Path) -> None:
    container = sidecar_of(rendered(chart, WORKS))

    assert container["args"] == [
        "sidecar",
        "--url=http://rota:8080",
        "--namespace=search",
        "--work=indexers",
        "--topic=documents",
        "--topic=images",
        "--strategy=sticky",
        "--session-timeout-ms=6000",
        "--progress-timeout-ms=60000",
        "--revoke-timeout-ms=1500",
        "--file=/var/run/rota/status.json",
        "--webhook=http://127.0.0.1:9000/changed",
        "--pod-label=rota.example/state",
        "--no-leave",
    ]
    assert CliRunner().invoke(app, [*container["args"], "--help"]).exit_code == 0
    assert "startupProbe" not in container
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["securityContext"] == {"runAsUser": 1000}
    assert container["resources"] == {"limits": {"memory": "128Mi"}}


def test_names_reach_the_sidecar_unchanged_by_yaml(chart: Path) -> None:
    manifests = rendered(
        chart, {"work": "orders:", "topics": ["a:", "b"], "strategy": "sticky: #1", "audience": "a, b"}
    )
    (projected,) = (
        volume["projected"]
        for volume in find(manifests, "Deployment", "app")["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "rota-token"
    )

    arguments = ["--work=orders:", "--topic=a:", "--topic=b", "--strategy=sticky: #1"]
    assert sidecar_of(manifests)["args"][2:] == arguments
    regex = {"work": "w", "topicRegex": "audit-[0-9]+: #1", "topicsDebounceMs": 5000, "topicsExcept": ["a*", "b"]}
    excepted = ["--except=a*", "--except=b"]
    arguments = ["--work=w", "--topic-regex=audit-[0-9]+: #1", *excepted, "--topics-debounce-ms=5000"]
    assert sidecar_of(rendered(chart, regex))["args"][2:] == arguments
    assert projected["sources"][0]["serviceAccountToken"]["audience"] == "a, b"


def test_it_has_rotas_credentials_and_the_program_its_status(chart: Path) -> None:
    pod = find(rendered(chart, WORKS), "Deployment", "app")["spec"]["template"]["spec"]
    sidecar, program = pod["initContainers"][0], pod["containers"][0]
    mounted = {mount["mountPath"] for mount in sidecar["volumeMounts"]}

    assert {mount["name"] for mount in sidecar["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert [mount["mountPath"] for mount in program["volumeMounts"]] == ["/var/run/rota"]
    shown = [one["value"] for one in sidecar["env"] if one["name"].startswith("ROTA_") and "_FILE" in one["name"]]
    assert len(shown) == 4
    assert {str(Path(path).parent) for path in shown} <= mounted
    bare = find(rendered(chart, LEADS), "Deployment", "app")["spec"]["template"]["spec"]
    assert not bare["volumes"]


@pytest.mark.parametrize(
    ("options", "version", "said"),
    [
        ({}, NEWEST, "set one of lead and work"),
        ({"lead": "a", "work": "b", "topics": ["c"]}, NEWEST, "set one of lead and work"),
        ({"work": "a"}, NEWEST, "belong together"),
        ({"lead": "a", "topics": ["b"]}, NEWEST, "belong together"),
        ({"lead": "a", "topicRegex": "b.*"}, NEWEST, "belong together"),
        ({"work": "a", "topics": ["b"], "topicRegex": "b.*"}, NEWEST, "set one of topics and topicRegex"),
        ({"work": "a", "topics": ["b"], "topicsExcept": ["c"]}, NEWEST, "topicsExcept requires topicRegex"),
        ({"lead": "a", "url": ""}, NEWEST, "pass url"),
        ({"lead": "a", "image": ""}, NEWEST, "pass image"),
        ({"lead": "a"}, "1.28.0", "need Kubernetes 1.29"),
    ],
)
def test_what_would_not_run_is_refused(chart: Path, options: dict[str, Any], version: str, said: str) -> None:
    with pytest.raises(ChartRefused, match=said):
        rendered(chart, options, version)


@pytest.mark.slow
def test_two_pods_sidecars_lead_one_after_the_other(chart: Path, processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    server.start_and_wait()
    template = find(rendered(chart, {**LEADS, "file": "status.json"}), "Deployment", "app")["spec"]["template"]
    elsewhere = {"http://rota:8080": server.url}
    first, second = (
        Pod(template, processes, tmp_path, name=name, elsewhere=elsewhere, loopback=[4040]) for name in ("a-0", "a-1")
    )

    leading = _start(first)
    leading.wait_for_url(_asked(first, "wait?for=leader"))
    leading.wait_for_url(first.probe("rota-sidecar", "startup"))
    following = _start(second)
    following.wait_for_url(_asked(second, "wait?for=follower"))
    seen = _status(second)
    assert (seen["name"], seen["state"]) == ("a-0", "follower")
    # The program of the other container reads this.
    written = json.loads(first.path("app", "/var/run/rota/status.json").read_text())
    assert (written["name"], written["state"]) == ("a-0", "leader")

    assert leading.terminate() == 0
    following.wait_for_url(_asked(second, "wait?for=leader"))
    seen = _status(second)
    assert (seen["name"], seen["state"]) == ("a-1", "leader")
    assert seen["fencing_token"] > written["fencing_token"]


def _start(pod: Pod) -> Process:
    """Both of its addresses are defaults, which no manifest says."""
    addresses = {"ROTA_SIDECAR_HTTP": 4040, "ROTA_SIDECAR_PROBES": 4041}
    return pod.run("rota-sidecar", **{name: f"127.0.0.1:{pod.port(port)}" for name, port in addresses.items()})


def _asked(pod: Pod, path: str) -> str:
    """Where the program asks: what the template put into its environment."""
    return f"{pod.environment('app')['ROTA_SIDECAR_URL']}/{path}"


def _status(pod: Pod) -> dict[str, Any]:
    with urllib.request.urlopen(_asked(pod, "")) as answer:
        document: dict[str, Any] = json.load(answer)
    return document
