"""The chart: linted strictly, rendered by Helm 4 and 3 over values and Kubernetes versions, taken by their schemas."""

from __future__ import annotations

import copy
import re
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rota.cli.commands import app
from tests.deploy.kubernetes import (
    CERTIFICATES,
    CHART,
    EVERYTHING,
    JOB,
    MINIMAL,
    NAMESPACE,
    NEWEST,
    OLDEST,
    RELEASE,
    REPOSITORY,
    SCHEMA,
    ChartRefused,
    by_case,
    find,
    problems,
    render,
    run_helm,
)

pytestmark = pytest.mark.thorough

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
STORE = {"store": {"existingSecret": "rota"}, "peer": {"existingSecret": "rota"}, "access": {"allowAnonymous": True}}
RULES = {"access": {"allowAnonymous": False, "rules": "[[rules]]"}}


@pytest.mark.parametrize("major", ["4", "3"])
@pytest.mark.parametrize("case", [MINIMAL, EVERYTHING], ids=["minimal", "everything"])
def test_a_strict_lint_finds_nothing(case: Path, major: str) -> None:
    said = run_helm("lint", "--strict", CHART, "--values", case, major=major)

    assert "0 chart(s) failed" in said
    assert "WARNING" not in said


@by_case
def test_oldest_and_newest_kubernetes_accept_the_charts_output(case: Path) -> None:
    for version, major in ((OLDEST, "3"), (NEWEST, "4")):
        manifests = render(case, version=version, major=major)
        assert [problem for one in manifests for problem in problems(one, version)] == []


def test_a_wrong_field_is_found_in_kubernetes_objects() -> None:
    manifests = render(EVERYTHING)
    deployment, monitor = copy.deepcopy(find(manifests, "Deployment")), copy.deepcopy(find(manifests, "ServiceMonitor"))
    deployment["spec"]["template"]["spec"]["restartpolicy"] = "Always"
    monitor["spec"]["endpoints"][0]["port"] = 9

    assert "restartpolicy" in problems(deployment, NEWEST)[0]
    assert "endpoints[0].port" in problems(monitor, NEWEST)[0]


def test_the_schema_knows_exactly_the_values_there_are() -> None:
    assert set(_properties(SCHEMA)) - {"enabled"} == set(_keys(VALUES, SCHEMA))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"store": {"existingSecret": ""}}, "set store.existingSecret"),
        ({"store": {"existingSecret": "rota", "url": "postgresql://host/rota"}}, "both set"),
        ({"store": {"existingSecret": "", "url": "sqlite:///rota.db"}}, "does not match pattern"),
        ({"peer": {"existingSecret": ""}}, "set peer.existingSecret"),
        ({"peer": {"existingSecret": "", "secret": "short"}}, "peer/secret"),
        ({"access": {"allowAnonymous": False}}, "callers have no permissions"),
        (
            {"tls": {"existingSecret": "s", "clientCa": {"existingSecret": "c"}}, "access": {"allowAnonymous": False}},
            "callers have no",
        ),
        ({"access": {"rules": "[[rules]]"}}, "access.allowAnonymous contradicts"),
        ({"access": {"allowAnonymous": False, "rules": "x", "existingConfigMap": "y"}}, "both set"),
        ({"access": {"serviceAccounts": "keys"}}, "access.serviceAccounts need access.rules"),
        ({**RULES, "tls": {"clientCa": {"existingSecret": "c"}}}, "tls.clientCa needs"),
        (
            {"access": {**RULES["access"], "serviceAccounts": "review"}, "serviceAccount": {"create": False}},
            "grants a role to the",
        ),
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
        ({"commonLabels": {"app.kubernetes.io/name": "mine"}}, "'app.kubernetes.io/name'"),
        ({"podLabels": {"app.kubernetes.io/component": "mine"}}, "'app.kubernetes.io/component'"),
        ({"replicas": 3}, "replicas"),
        ({"image": None}, "image"),
        ({"global": None}, "global"),
        ({"image": {"repository": None}}, "repository"),
        ({"image": {"tga": "1"}}, "tga"),
        ({"serviceMonitor": {"interval": "15 seconds"}}, "serviceMonitor/interval"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_values_are_refused_with_what_is_wrong(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        render(MINIMAL, values=values)

    assert said in str(refused.value)


def test_a_parent_chart_may_have_globals_and_disable_it(tmp_path: Path) -> None:
    umbrella = tmp_path / "umbrella"
    (umbrella / "charts").mkdir(parents=True)
    (umbrella / "charts" / "rota").symlink_to(CHART)
    dependency = "dependencies: [{name: rota, version: 0.2.0, condition: rota.enabled}]"
    (umbrella / "Chart.yaml").write_text(f"apiVersion: v2\nname: umbrella\nversion: 1.0.0\n{dependency}\n")
    globals_ = {"global": {"imageRegistry": "registry.example", "imagePullSecrets": ["pull"], "ofSomebodyElse": 1}}

    for major in ("4", "3"):
        on = render(values={**globals_, "rota": {"enabled": True, **STORE}}, chart=umbrella, major=major)
        off = render(values={**globals_, "rota": {"enabled": False}}, chart=umbrella, major=major)

        pod = find(on, "Deployment")["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == "registry.example/rota:0.2.0"
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
        assert off == []


def test_what_the_readme_sets_is_enough() -> None:
    readme = (CHART / "README.md").read_text()
    (install,) = re.findall(r"^helm install (.*?)^helm test", readme, re.MULTILINE | re.DOTALL)
    release, chart, *options = shlex.split(install.replace("\\\n", " "))

    rendered = run_helm("template", release, REPOSITORY / chart, *options)

    assert "image: REGISTRY/rota:0.2.0" in rendered
    made = set(re.findall(r"--from-literal=([\w-]+)=", readme))
    assert {VALUES["store"]["existingSecretKey"], VALUES["peer"]["existingSecretKey"]} == made


def test_the_package_has_what_the_chart_needs_and_no_cases(tmp_path: Path) -> None:
    run_helm("package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("rota-*.tgz")

    with tarfile.open(package) as tar:
        names = {name.removeprefix("rota/") for name in tar.getnames()}
    assert {"values.schema.json", "files/rules.yaml", "files/dashboards/rota-overview.json", "README.md"} <= names
    assert not [name for name in names if name.startswith("ci/")]


def test_the_notes_say_where_it_is_and_warn_of_what_is_missing() -> None:
    notes = _notes(MINIMAL)
    assert f"http://{RELEASE}.{NAMESPACE}:8080" in notes
    assert f"dns:///{RELEASE}-headless.{NAMESPACE}:9090" in notes
    assert "WARNING: every caller that reaches the service may do everything" in notes

    assert "token create" not in notes
    assert CliRunner().invoke(app, [*_token_command(_notes(JOB)), "--help"]).exit_code == 0
    assert "WARNING: with 1 replica(s)" in _notes(CHART / "ci" / "bare-values.yaml")
    assert "existingSecret keep them out" in _notes(CHART / "ci" / "own-secrets-values.yaml")
    assert "tokens travel in plain text" in _notes(JOB)
    assert "clients must present certificates" in _notes(CERTIFICATES)
    assert f"https://{RELEASE}.{NAMESPACE}:8080" in _notes(CERTIFICATES)
    assert "NOTE" not in _notes(EVERYTHING)


def _notes(case: Path) -> str:
    said = run_helm("install", RELEASE, CHART, "--namespace", NAMESPACE, "--dry-run=client", "--values", case)
    return said.partition("\nNOTES:\n")[2]


def _token_command(notes: str) -> list[str]:
    """What the notes have one run in a server's container."""
    (found,) = re.findall(r"-m rota (token .*)", notes)
    return shlex.split(found)


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
