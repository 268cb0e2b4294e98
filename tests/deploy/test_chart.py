"""The chart: linted strictly, rendered by Helm 4 and 3 over values and Kubernetes versions, taken by their schemas."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rota.protocol.limits import Limits
from tests.deploy.kubernetes import (
    CASES,
    CHART,
    EVERYTHING,
    MINIMAL,
    NAMESPACE,
    NEWEST,
    OLDEST,
    RELEASE,
    REPOSITORY,
    ChartRefused,
    Manifest,
    containers,
    find,
    is_of_chart,
    pod_templates,
    problems,
    render,
    run_helm,
)

VERSIONS = list(dict.fromkeys(kubernetes_validate.utils.all_versions()))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
STORE = {"store": {"existingSecret": "rota"}, "peer": {"existingSecret": "rota"}}
by_name = pytest.mark.parametrize("case", CASES, ids=lambda path: path.name.removesuffix("-values.yaml"))


@pytest.mark.parametrize("major", ["4", "3"])
@pytest.mark.parametrize("case", [MINIMAL, EVERYTHING], ids=["minimal", "everything"])
def test_a_strict_lint_finds_nothing(case: Path, major: str) -> None:
    said = run_helm("lint", "--strict", CHART, "--values", case, major=major)

    assert "0 chart(s) failed" in said
    assert "WARNING" not in said


@by_name
def test_the_oldest_and_the_newest_kubernetes_take_what_is_rendered(case: Path) -> None:
    for version, major in ((OLDEST, "3"), (NEWEST, "4")):
        manifests = render(case, version=version, major=major)
        assert [problem for one in manifests for problem in problems(one, version)] == []


@pytest.mark.slow
@by_name
@pytest.mark.parametrize("version", VERSIONS)
def test_every_kubernetes_takes_what_both_helms_render(case: Path, version: str) -> None:
    manifests = render(case, version=version, major="4")

    assert [problem for one in manifests for problem in problems(one, version)] == []
    assert manifests == render(case, version=version, major="3")


def test_a_wrong_field_is_found_in_objects_of_kubernetes_and_of_operators() -> None:
    manifests = render(EVERYTHING)
    deployment, monitor = copy.deepcopy(find(manifests, "Deployment")), copy.deepcopy(find(manifests, "ServiceMonitor"))
    deployment["spec"]["template"]["spec"]["restartpolicy"] = "Always"
    monitor["spec"]["endpoints"][0]["port"] = 9

    assert "restartpolicy" in problems(deployment, NEWEST)[0]
    assert "endpoints[0].port" in problems(monitor, NEWEST)[0]


def test_the_cases_switch_on_every_template() -> None:
    rendered = {one["kind"] for case in CASES for one in render(case)}

    written = {
        kind
        for path in CHART.glob("templates/**/*.yaml")
        for kind in re.findall(r"^kind: (\w+)", path.read_text(), re.M)
    }
    assert rendered == written | {"ConfigMap"}


def test_the_table_of_values_in_the_readme_is_current() -> None:
    table = REPOSITORY / "helm" / "values_table.py"
    checked = subprocess.run([sys.executable, table, "--check"], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stderr


def test_the_schema_knows_exactly_the_values_there_are() -> None:
    assert set(_properties(SCHEMA)) - {"enabled"} == set(_keys(VALUES, SCHEMA))


def test_the_limits_of_the_cases_are_limits_of_the_protocol() -> None:
    limits = yaml.safe_load(EVERYTHING.read_text())["server"]["limits"]

    assert limits
    assert limits.keys() <= Limits.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"store": {"existingSecret": ""}}, "set store.existingSecret"),
        ({"store": {"existingSecret": "rota", "url": "postgresql://host/rota"}}, "both set"),
        ({"store": {"existingSecret": "", "url": "sqlite:///rota.db"}}, "does not match pattern"),
        ({"peer": {"existingSecret": ""}}, "set peer.existingSecret"),
        ({"peer": {"existingSecret": "", "secret": "short"}}, "peer/secret"),
        ({"redis": {"enabled": True}}, "redis.enabled needs"),
        (
            {"migrations": {"mode": "hook"}, "store": {"existingSecret": "", "url": "postgresql://h/d"}},
            "set store.exis",
        ),
        ({"migrations": {"mode": "Init"}}, "migrations/mode"),
        ({"server": {"drainTimeoutMs": 120000}}, "terminationGracePeriodSeconds must be at least 135"),
        ({"server": {"grpc": False}, "grpcRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}}, "server.grpc"),
        ({"httpRoute": {"enabled": True}}, "httpRoute/parentRefs"),
        ({"pipeline": {"enabled": True}}, "pipeline.image"),
        ({"pipeline": {"enabled": True, "image": "i", "kind": "SparkApplication"}}, "runs one step"),
        ({"autoscaling": {"enabled": True, "minReplicas": 10}}, "is more than"),
        ({"replicaCount": "3"}, "replicaCount"),
        ({"replicas": 3}, "replicas"),
        ({"image": {"tga": "1"}}, "tga"),
        ({"serviceMonitor": {"interval": "15 seconds"}}, "serviceMonitor/interval"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_values_are_refused_with_what_is_wrong(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        render(MINIMAL, values=values)

    assert said in str(refused.value)


def test_one_says_where_postgres_is_and_has_three_servers_that_are_replaced_one_by_one() -> None:
    manifests = render(MINIMAL)
    spec = find(manifests, "Deployment")["spec"]

    assert spec["replicas"] == 3
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert find(manifests, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert [one["kind"] for one in manifests if one["kind"] in ("Secret", "Job", "Role", "NetworkPolicy")] == []


def test_an_autoscaler_has_the_replicas_to_itself() -> None:
    manifests = render(MINIMAL, values={"autoscaling": {"enabled": True}})

    assert "replicas" not in find(manifests, "Deployment")["spec"]
    assert find(manifests, "HorizontalPodAutoscaler")["spec"]["minReplicas"] == 3


@by_name
def test_whatever_selects_or_names_servers_means_the_pods_and_ports_there_are(case: Path) -> None:
    manifests = render(case)
    pod = find(manifests, "Deployment")["spec"]["template"]
    labels, ports = pod["metadata"]["labels"], {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    services = [one for one in manifests if one["kind"] == "Service" and is_of_chart(one)]

    assert len(services) == 2
    for service in services:
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for one in manifests:
        if one["kind"] in ("Deployment", "PodDisruptionBudget") and is_of_chart(one):
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        if one["kind"] == "NetworkPolicy":
            assert one["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
            assert {port["port"] for rule in one["spec"]["ingress"] for port in rule["ports"]} == ports
    monitored = [one["spec"]["selector"]["matchLabels"] for one in manifests if one["kind"] == "ServiceMonitor"]
    for selector in monitored:
        matching = [one for one in services if selector.items() <= one["metadata"]["labels"].items()]
        assert [one["metadata"]["name"].endswith("-headless") for one in matching] == [True]


@by_name
def test_every_pod_meets_the_restricted_standard_and_writes_nowhere_but_to_its_volumes(case: Path) -> None:
    for maker, pod in pod_templates(render(case)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"], maker
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, maker
        assert not spec["automountServiceAccountToken"], maker
        assert not any(spec.get(shared) for shared in ("hostNetwork", "hostPID", "hostIPC")), maker
        for container in containers(pod):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, maker
            assert container["securityContext"]["readOnlyRootFilesystem"], maker
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, maker
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), maker
            assert "memory" in container["resources"]["limits"], maker
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted <= {volume["name"] for volume in spec.get("volumes", ())}, maker


def test_what_is_to_be_hidden_stands_in_the_secret_of_the_release_alone() -> None:
    own = CHART / "ci" / "own-secrets-values.yaml"
    manifests = render(own)
    (secret,) = (one for one in manifests if one["kind"] == "Secret")

    planted = set(re.findall(r"PLANTED[\w-]*", own.read_text()))
    assert len(planted) == 3
    assert planted == set(re.findall(r"PLANTED[\w-]*", json.dumps(secret)))
    assert "PLANTED" not in json.dumps([one for one in manifests if one is not secret])


def test_servers_roll_when_a_secret_of_the_release_changes() -> None:
    one, other = (
        find(render(MINIMAL, values={"peer": {"existingSecret": "", "secret": secret * 32}}), "Deployment")
        for secret in ("a", "b")
    )

    name = "checksum/secrets"
    assert _annotations(one)[name] != _annotations(other)[name]


def test_every_way_of_migrating_has_its_upgrade_before_its_servers() -> None:
    first = {mode: _first_commands(render(MINIMAL, values={"migrations": {"mode": mode}})) for mode in _modes()}

    assert first == {
        "init": {"Deployment": [["db", "upgrade"]]},
        "job": {"Deployment": [["db", "wait", "--timeout", "300"]], "Job": [["db", "upgrade"]]},
        "hook": {"Deployment": [], "Job": [["db", "upgrade"]]},
        "none": {"Deployment": []},
    }


def test_a_job_of_another_image_is_another_job() -> None:
    """What a job runs cannot be changed: an upgrade of the release would fail."""
    names = {
        find(render(MINIMAL, values={"migrations": {"mode": "job"}, "image": {"tag": tag}}), "Job")["metadata"]["name"]
        for tag in ("1.0.0", "1.0.1", "1.0.1")
    }

    assert len(names) == 2


def test_a_hook_needs_nothing_that_the_release_brings() -> None:
    job = find(render(MINIMAL, values={"migrations": {"mode": "hook"}}), "Job")

    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "serviceAccountName" not in job["spec"]["template"]["spec"]
    assert f"{RELEASE}-secrets" not in json.dumps(job)


def test_alerts_and_dashboards_are_those_of_the_files() -> None:
    manifests = render(EVERYTHING)

    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            link = rule["annotations"]["runbook_url"]
            rule["annotations"]["runbook_url"] = f"https://git.example/rota/blob/main/{link}"
            assert (REPOSITORY / link).is_file()
    assert find(manifests, "PrometheusRule")["spec"] == rules
    dashboards = {
        name: content
        for one in manifests
        if one["kind"] == "ConfigMap" and "grafana_dashboard" in one["metadata"].get("labels", {})
        for name, content in one["data"].items()
    }
    assert dashboards == {path.name: path.read_text() for path in (CHART / "files" / "dashboards").glob("*.json")}


def test_the_network_policy_lets_in_clients_peers_and_helms_test_alone() -> None:
    manifests = render(EVERYTHING)
    clients, peers, *_ = find(manifests, "NetworkPolicy")["spec"]["ingress"]
    tester = find(manifests, "Pod")["metadata"]["labels"]
    server = find(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]

    assert clients["from"][0] == {"namespaceSelector": {"matchLabels": {"rota": "client"}}}
    assert clients["from"][1]["podSelector"]["matchLabels"].items() <= tester.items()
    assert {port["port"] for port in clients["ports"]} == {"http", "grpc"}
    assert [port["port"] for port in peers["ports"]] == ["peer"]
    assert peers["from"][0]["podSelector"]["matchLabels"].items() <= server.items()
    assert not peers["from"][0]["podSelector"]["matchLabels"].items() <= tester.items()


def test_a_chart_above_this_one_may_have_globals_and_switch_it_off(tmp_path: Path) -> None:
    umbrella = tmp_path / "umbrella"
    (umbrella / "charts").mkdir(parents=True)
    (umbrella / "charts" / "rota").symlink_to(CHART)
    dependency = "dependencies: [{name: rota, version: 0.1.0, condition: rota.enabled}]"
    (umbrella / "Chart.yaml").write_text(f"apiVersion: v2\nname: umbrella\nversion: 1.0.0\n{dependency}\n")
    globals_ = {"global": {"imageRegistry": "registry.example", "imagePullSecrets": ["pull"], "ofSomebodyElse": 1}}

    for major in ("4", "3"):
        on = render(values={**globals_, "rota": {"enabled": True, **STORE}}, chart=umbrella, major=major)
        off = render(values={**globals_, "rota": {"enabled": False}}, chart=umbrella, major=major)

        pod = find(on, "Deployment")["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == "registry.example/rota:0.1.0"
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
        assert off == []


def test_the_notes_say_where_it_is_and_warn_of_what_is_missing() -> None:
    notes = _notes(MINIMAL)
    assert f"http://{RELEASE}.{NAMESPACE}:8080" in notes
    assert f"dns:///{RELEASE}-headless.{NAMESPACE}:9090" in notes
    assert "WARNING" not in notes

    assert "WARNING: with 1 replica(s)" in _notes(CHART / "ci" / "bare-values.yaml")
    assert "existingSecret keeps it out" in _notes(CHART / "ci" / "own-secrets-values.yaml")
    assert "NOTE" not in _notes(EVERYTHING)


def _notes(case: Path) -> str:
    said = run_helm("install", RELEASE, CHART, "--namespace", NAMESPACE, "--dry-run=client", "--values", case)
    return said.partition("\nNOTES:\n")[2]


def _modes() -> list[str]:
    modes: list[str] = SCHEMA["properties"]["migrations"]["properties"]["mode"]["enum"]
    return modes


def _first_commands(manifests: list[Manifest]) -> dict[str, list[list[str]]]:
    """What init containers of the servers and containers of jobs run."""
    found: dict[str, list[list[str]]] = {}
    for one in manifests:
        if one["kind"] in ("Deployment", "Job"):
            pod = one["spec"]["template"]["spec"]
            of_interest = pod.get("initContainers", []) if one["kind"] == "Deployment" else pod["containers"]
            found[one["kind"]] = [container["args"] for container in of_interest]
    return found


def _annotations(deployment: Manifest) -> dict[str, str]:
    annotations: dict[str, str] = deployment["spec"]["template"]["metadata"]["annotations"]
    return annotations


def _properties(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, part in schema.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from _properties(part, f"{prefix}{name}.")


def _keys(values: dict[str, Any], schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """As deep as the schema names what may be there."""
    for name, value in values.items():
        yield f"{prefix}{name}"
        part = schema.get("properties", {}).get(name, {})
        if isinstance(value, dict) and "properties" in part:
            yield from _keys(value, part, f"{prefix}{name}.")
