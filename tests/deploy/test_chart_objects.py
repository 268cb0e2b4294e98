"""What the chart makes of its values: pods, what selects them, secrets, migrations, alerts."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes import (
    CERTIFICATES,
    CHART,
    EVERYTHING,
    JOB,
    MINIMAL,
    RELEASE,
    REPOSITORY,
    SCHEMA,
    Manifest,
    by_case,
    containers,
    find,
    is_of_chart,
    pod_templates,
    render,
)

pytestmark = pytest.mark.thorough


def test_three_listed_servers_are_replaced_one_by_one() -> None:
    manifests = render(MINIMAL)
    spec = find(manifests, "Deployment")["spec"]

    assert spec["replicas"] == 3
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert find(manifests, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert [one["kind"] for one in manifests if one["kind"] in ("Secret", "Job", "Role", "Certificate")] == []


@pytest.mark.parametrize("named", [{}, {"fullnameOverride": "f" * 63}, {"nameOverride": "n" * 63}])
@pytest.mark.parametrize("release", ["r" * 53, "shop.eu" + ".r" * 23])
def test_the_longest_names_fit(named: dict[str, str], release: str) -> None:
    manifests = render(EVERYTHING, values={**named, "migrations": {"mode": "job"}}, release=release)

    longest = {"CronJob": 52, "Service": 63, "Job": 63, "Deployment": 63}
    names = {(one["kind"], one["metadata"]["name"]) for one in manifests if one["kind"] in longest}
    assert len(names) == 5
    assert [name for kind, name in names if len(name) > longest[kind] or "." in name] == []


def test_an_autoscaler_has_the_replicas_to_itself() -> None:
    manifests = render(MINIMAL, values={"autoscaling": {"enabled": True}})

    assert "replicas" not in find(manifests, "Deployment")["spec"]
    assert find(manifests, "HorizontalPodAutoscaler")["spec"]["minReplicas"] == 3


@by_case
def test_selectors_and_names_match_pods_and_ports(case: Path) -> None:
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
        if one["kind"] == "NetworkPolicy" and not one["metadata"]["name"].endswith("-jobs"):
            assert one["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
            assert {port["port"] for rule in one["spec"]["ingress"] for port in rule["ports"]} == ports
    monitored = [one["spec"]["selector"]["matchLabels"] for one in manifests if one["kind"] == "ServiceMonitor"]
    for selector in monitored:
        matching = [one for one in services if selector.items() <= one["metadata"]["labels"].items()]
        assert [one["metadata"]["name"].endswith("-headless") for one in matching] == [True]


@by_case
def test_every_pod_meets_the_restricted_standard(case: Path) -> None:
    for maker, pod in pod_templates(render(case)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"], maker
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, maker
        asks_the_cluster = case in (EVERYTHING, JOB) and maker.startswith("Deployment/")
        assert spec["automountServiceAccountToken"] is asks_the_cluster, maker
        assert not any(spec.get(shared) for shared in ("hostNetwork", "hostPID", "hostIPC")), maker
        for container in containers(pod):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, maker
            assert container["securityContext"]["readOnlyRootFilesystem"], maker
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, maker
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), maker
            assert "memory" in container["resources"]["limits"], maker
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted <= {volume["name"] for volume in spec.get("volumes", ())}, maker


def test_hidden_values_are_in_the_secret_of_the_release_alone() -> None:
    own = CHART / "ci" / "own-secrets-values.yaml"
    manifests = render(own)
    (secret,) = (one for one in manifests if one["kind"] == "Secret")

    planted = set(re.findall(r"PLANTED[\w-]*", own.read_text()))
    assert len(planted) == 3
    assert planted == set(re.findall(r"PLANTED[\w-]*", json.dumps(secret)))
    assert "PLANTED" not in json.dumps([one for one in manifests if one is not secret])


def test_nothing_but_the_secret_depends_on_what_it_holds() -> None:
    """A digest in an annotation would let callers that may read pods try out passwords, without a trace at Postgres."""
    one, other = (
        render(MINIMAL, values={"peer": {"existingSecret": "", "secret": secret * 32}}) for secret in ("a", "b")
    )

    assert [each["kind"] for each, changed in zip(one, other, strict=True) if each != changed] == ["Secret"]


def test_an_upgrade_replaces_servers_with_secrets_of_the_release() -> None:
    values = {"peer": {"existingSecret": "", "secret": "a" * 32}}

    assert _annotations(find(render(MINIMAL, values=values), "Deployment")) == {"rota/release-revision": "1"}
    assert "annotations" not in find(render(MINIMAL), "Deployment")["spec"]["template"]["metadata"]


@by_case
def test_a_policy_holds_for_every_pod_but_sparks_and_the_tests(case: Path) -> None:
    """Spark's driver and executors call each other on ports of their own: that policy is its operator's matter."""
    manifests = render(case, values={"networkPolicy": {"egress": True}, "migrations": {"mode": "job"}})
    policies = [one["spec"] for one in manifests if one["kind"] == "NetworkPolicy" and is_of_chart(one)]
    pods = {name: pod["metadata"]["labels"] for name, pod in pod_templates(manifests) if is_of_chart(pod)}

    for name, labels in pods.items():
        covering = [spec for spec in policies if _selects(spec["podSelector"], labels)]
        assert len(covering) == (labels["app.kubernetes.io/component"] != "test"), name
    assert all(spec["policyTypes"] == ["Ingress", "Egress"] for spec in policies)
    assert _find_policy(manifests, of_jobs=True)["spec"]["ingress"] == []


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", ())
    return selector["matchLabels"].items() <= labels.items() and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )


def _find_policy(manifests: list[Manifest], *, of_jobs: bool = False) -> Manifest:
    policies = (one for one in manifests if one["kind"] == "NetworkPolicy" and is_of_chart(one))
    (found,) = (one for one in policies if one["metadata"]["name"].endswith("-jobs") == of_jobs)
    return found


def test_every_migration_upgrades_before_its_servers_start() -> None:
    first = {mode: _first_commands(render(MINIMAL, values={"migrations": {"mode": mode}})) for mode in _modes()}

    assert first == {
        "init": {"Deployment": [["db", "upgrade"]]},
        "job": {"Deployment": [["db", "wait", "--timeout", "300"]], "Job": [["db", "upgrade"]]},
        "hook": {"Deployment": [], "Job": [["db", "upgrade"]]},
        "none": {"Deployment": []},
    }


@pytest.mark.parametrize("mode", ["init", "job"])
def test_a_password_file_in_the_stores_url_works_for_each_reader(mode: str) -> None:
    values: dict[str, Any] = {
        "migrations": {"mode": mode},
        "extraVolumes": [{"name": "postgres", "secret": {"secretName": "postgres"}}],
        "extraVolumeMounts": [{"name": "postgres", "mountPath": "/var/run/postgres", "readOnly": True}],
    }
    reported = [
        (pod["spec"].get("volumes", ()), container.get("volumeMounts", ()))
        for _, pod in pod_templates(render(MINIMAL, values=values))
        for container in containers(pod)
        if "ROTA_STORE" in {variable["name"] for variable in container.get("env", ())}
    ]

    assert len(reported) == {"init": 2, "job": 3}[mode]
    for volumes, mounts in reported:
        assert values["extraVolumes"][0] in volumes
        assert values["extraVolumeMounts"][0] in mounts


@pytest.mark.parametrize("mode", ["job", "hook"])
@pytest.mark.parametrize(
    "values",
    [
        {"image": {"tag": "1.0.1"}},
        {"image": {"pullPolicy": "Always"}},
        {"imagePullSecrets": ["another"]},
        {"store": {"existingSecretKey": "another"}},
        {"resources": {"limits": {"memory": "2Gi"}}},
        {"podSecurityContext": {"runAsUser": 1000}},
        {"nodeSelector": {"pool": "another"}},
        {"priorityClassName": "high"},
        {"commonLabels": {"team": "another"}},
        {"extraVolumes": [{"name": "another", "emptyDir": {}}]},
    ],
    ids=lambda values: next(iter(values)) if isinstance(values, dict) else "",
)
def test_a_job_with_other_pods_is_another_job(values: dict[str, Any], mode: str) -> None:
    """A job's pods cannot be changed: an upgrade of the release would fail."""
    former, same = (find(render(MINIMAL, values={"migrations": {"mode": mode}}), "Job") for _ in range(2))
    other = find(render(MINIMAL, values={"migrations": {"mode": mode}, **values}), "Job")

    assert former["metadata"]["name"] == same["metadata"]["name"]
    assert former["spec"]["template"] != other["spec"]["template"]
    assert former["metadata"]["name"] != other["metadata"]["name"]


def test_a_patch_of_the_chart_replaces_no_pod(tmp_path: Path) -> None:
    following = tmp_path / "rota"
    shutil.copytree(CHART, following)
    about = (following / "Chart.yaml").read_text()
    (following / "Chart.yaml").write_text(re.sub(r"(?m)^version: .*$", "version: 99.0.0", about))
    values: dict[str, Any] = {"migrations": {"mode": "job"}}

    former, later = (render(EVERYTHING, values=values, chart=chart) for chart in (CHART, following))

    assert find(former, "Deployment") != find(later, "Deployment")
    assert _replaced(former) == _replaced(later)


def _replaced(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """The pods of a release by their objects, less that of Helm's test."""
    return {name: pod for name, pod in pod_templates(manifests) if not name.startswith("Pod/")}


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


def test_the_network_policy_admits_clients_peers_and_the_test() -> None:
    manifests = render(EVERYTHING)
    clients, peers, *_ = _find_policy(manifests)["spec"]["ingress"]
    tester = find(manifests, "Pod")["metadata"]["labels"]
    server = find(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]

    assert clients["from"][0] == {"namespaceSelector": {"matchLabels": {"rota": "client"}}}
    assert clients["from"][1]["podSelector"]["matchLabels"].items() <= tester.items()
    assert {port["port"] for port in clients["ports"]} == {"http", "grpc"}
    assert [port["port"] for port in peers["ports"]] == ["peer"]
    assert peers["from"][0]["podSelector"]["matchLabels"].items() <= server.items()
    assert not peers["from"][0]["podSelector"]["matchLabels"].items() <= tester.items()


@pytest.mark.parametrize("case", [MINIMAL, CERTIFICATES], ids=["secret", "certificates"])
def test_by_default_only_servers_reach_the_port_for_peers(case: Path) -> None:
    """Clients, kubelets and Prometheus reach their ports, and nothing bounds the way to Postgres and Redis."""
    manifests = render(case)
    servers, jobs = (_find_policy(manifests, of_jobs=of_jobs)["spec"] for of_jobs in (False, True))

    selects = {
        port["port"]: [one["podSelector"]["matchLabels"] for one in rule.get("from", ())]
        for rule in servers["ingress"]
        for port in rule["ports"]
    }
    own = find(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert selects.pop("peer") == [servers["podSelector"]["matchLabels"]]
    assert servers["podSelector"]["matchLabels"].items() <= own.items()
    assert selects.keys() >= {"http", "grpc"}
    assert not any(selects.values())
    assert [(spec["policyTypes"], spec.get("egress")) for spec in (servers, jobs)] == [(["Ingress"], None)] * 2


def test_one_value_has_replicas_show_each_other_certificates() -> None:
    manifests = render(MINIMAL, values={"peer": {"tls": {"certManager": True}}})
    certificates = {one["spec"]["secretName"]: one["spec"] for one in manifests if one["kind"] == "Certificate"}
    issuers = {one["metadata"]["name"]: one["spec"] for one in manifests if one["kind"] == "Issuer"}
    pod = find(manifests, "Deployment")["spec"]["template"]["spec"]
    (mounted,) = (one["secret"]["secretName"] for one in pod["volumes"] if one["name"] == "peer-tls")
    variables = {one["name"] for one in pod["containers"][0]["env"]}

    shown = certificates.pop(mounted)
    (authority,) = certificates
    assert shown["dnsNames"] == ["rota-peer"]
    assert issuers[shown["issuerRef"]["name"]] == {"ca": {"secretName": authority}}
    assert issuers[certificates[authority]["issuerRef"]["name"]] == {"selfSigned": {}}
    assert {f"ROTA_PEER_TLS_{part}_FILE" for part in ("CERT", "KEY", "CA")} <= variables


def test_the_network_policy_lets_out_to_configured_services() -> None:
    reached = {
        case.name: [
            _ports(rule)
            for rule in _find_policy(render(case, values={"networkPolicy": {"egress": True}}))["spec"]["egress"]
        ]
        for case in (EVERYTHING, CERTIFICATES)
    }

    assert reached == {
        EVERYTHING.name: [{53}, {7100}, {5432}, {6379}, {4318}, {443, 6443}, {443}],
        CERTIFICATES.name: [{53}, {7100}, {5432}],
    }


def _ports(rule: Manifest) -> set[int]:
    return {port["port"] for port in rule["ports"]}


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
