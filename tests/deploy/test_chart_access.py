"""Access: the rules, tokens and certificates that the chart gives to the servers, and that they work."""

from __future__ import annotations

import ssl
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from rota.core.access.document import read_document
from rota.core.access.sources import parse_networks
from tests.access.certificates import Authority, Certificate
from tests.deploy.kubelet import Pod
from tests.deploy.kubernetes import CERTIFICATES, EVERYTHING, JOB, MINIMAL, NAMESPACE, Manifest, find, render
from tests.support.processes import Processes

RULES = """
[[rules]]
name = "workers work in the shop"
subjects = ["cn:worker"]
actions = ["member"]
namespaces = ["shop"]

[[rules]]
name = "Helm's test looks"
subjects = ["cn:tester"]
actions = ["viewer"]
namespaces = ["default"]
"""
SECURE = {
    "store": {"existingSecret": "rota"},
    "peer": {"tls": {"existingSecret": "peers"}},
    "tls": {"existingSecret": "server", "clientCa": {"existingSecret": "clients"}},
    "access": {"rules": RULES},
    "server": {"drainDelayMs": 0, "shardCount": 4},
    "tests": {"certificateExistingSecret": "tester", "ca": {"existingSecret": "server"}},
}


def test_rules_are_a_config_map_that_rota_can_read() -> None:
    manifests = render(EVERYTHING)
    (volume,) = (one for one in _volumes(manifests) if one["name"] == "access")

    config = find(manifests, "ConfigMap", volume["configMap"]["name"])
    document = read_document(tomllib.loads(config["data"][volume["configMap"]["items"][0]["key"]]))
    assert [rule.subjects for rule in document.rules] == [("sa:shop/*",)]
    assert document.issuers[0].review


def test_only_servers_that_ask_about_tokens_have_the_right_to() -> None:
    binding = find(render(EVERYTHING), "ClusterRoleBinding")
    account = find(render(EVERYTHING), "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]

    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    assert [one for one in render(JOB) if one["kind"] == "ClusterRoleBinding"] == []


def test_kubelets_and_prometheus_speak_tls_where_servers_do() -> None:
    plain, tls, strict = (render(case) for case in (MINIMAL, EVERYTHING, CERTIFICATES))

    assert _probes(plain) == [
        {"httpGet": {"path": path, "port": "http"}} for path in ("/healthz", "/readyz", "/healthz")
    ]
    assert {probe["httpGet"]["scheme"] for probe in _probes(tls)} == {"HTTPS"}
    assert _probes(strict) == [
        {"httpGet": {"path": path, "port": "probes"}} for path in ("/healthz", "/readyz", "/healthz")
    ]
    assert find(strict, "ServiceMonitor")["spec"]["endpoints"][0]["scheme"] == "https"


@pytest.mark.parametrize(
    ("case", "chosen", "asked", "port"),
    [
        (MINIMAL, "auto", "httpGet", "http"),
        (MINIMAL, "own", "httpGet", "probes"),
        (CERTIFICATES, "auto", "httpGet", "probes"),
        (CERTIFICATES, "api", "tcpSocket", "http"),
    ],
)
def test_probes_have_a_port_of_their_own_where_it_is_wanted(case: Path, chosen: str, asked: str, port: str) -> None:
    manifests = render(case, values={"server": {"probes": chosen}})
    (server,) = find(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    let_in = [rule["ports"] for rule in find(manifests, "NetworkPolicy", "rota")["spec"]["ingress"]]

    assert {probe[asked]["port"] for probe in _probes(manifests)} == {port}
    is_own = port == "probes"
    assert ({"name": "probes", "containerPort": 8081} in server["ports"]) is is_own
    assert ({"name": "ROTA_PROBES", "value": "0.0.0.0:8081"} in server["env"]) is is_own
    assert ([{"port": "probes", "protocol": "TCP"}] in let_in) is is_own


def test_the_suggested_ingress_can_be_trusted() -> None:
    (server,) = find(render(EVERYTHING), "Deployment")["spec"]["template"]["spec"]["containers"]
    (reported,) = (one["value"] for one in server["env"] if one["name"] == "ROTA_TRUSTED_PROXIES")

    assert [str(network) for network in parse_networks(reported)] == ["10.0.0.0/8", "2001:db8::7/128"]


@pytest.mark.slow
def test_the_rendered_release_asks_for_certificates_by_its_rules(
    processes: Processes, postgres_dsn: str, tmp_path: Path
) -> None:
    """Two servers as they stand but for ports and paths, with secrets as cert-manager makes them."""
    authority, peers = Authority(tmp_path), Authority(tmp_path, "peers")
    server, peer = _as_secret(authority, authority.issue("rota")), _as_secret(peers, peers.issue("rota-peer"))
    tester = _as_secret(authority, authority.issue("tester", common_name="tester"))
    secrets = {
        "rota": {"url": postgres_dsn},
        "server": server,
        "peers": peer,
        "clients": {"ca.crt": server["ca.crt"]},
        "tester": tester,
    }
    manifests = render(values=SECURE)
    template = find(manifests, "Deployment")["spec"]["template"]
    config_maps = {one["metadata"]["name"]: one["data"] for one in manifests if one["kind"] == "ConfigMap"}
    pods = [
        Pod(template, processes, tmp_path, name=name, secrets=secrets, config_maps=config_maps)
        for name in ("rota-0", "rota-1")
    ]
    assert pods[0].run("upgrade").wait_for_exit() == 0

    running = [pod.run("rota") for pod in pods]
    for process, pod in zip(running, pods, strict=True):
        # A kubelet shows no certificate, and believes any.
        url, context = pod.probe("rota", "readiness"), authority.client_context()
        process.wait_until(partial(_is_ready, url, context), f"answer from {url}")

    worker = authority.client_context(authority.issue("worker", common_name="worker"))
    stranger = authority.client_context(authority.issue("stranger", common_name="stranger"))
    for pod in pods:
        base = f"https://127.0.0.1:{pod.port(8080)}/v1/namespaces"
        assert _status(f"{base}/shop/groups", worker) == 200
        assert _status(f"{base}/other/groups", worker) == 403
        assert _status(f"{base}/shop/groups", stranger) == 403
        assert _status(f"{base}/shop/groups", authority.client_context()) == 401
    address = {"rota:8080": f"127.0.0.1:{pods[0].port(8080)}"}
    test = Pod(find(manifests, "Pod"), processes, tmp_path, name="rota-test", secrets=secrets, elsewhere=address)
    assert test.run("lists").wait_for_exit() == 0
    assert [process.terminate() for process in running] == [0, 0]


@pytest.mark.slow
def test_kubelets_see_readiness_of_a_server_with_client_certs(
    processes: Processes, postgres_dsn: str, tmp_path: Path
) -> None:
    authority, peers = Authority(tmp_path), Authority(tmp_path, "peers")
    server = _as_secret(authority, authority.issue("rota"))
    secrets = {
        "rota": {"url": postgres_dsn},
        "rota-tls": server,
        "rota-peers": _as_secret(peers, peers.issue("rota-peer")),
        "rota-clients": {"ca.crt": server["ca.crt"]},
    }
    template = find(render(CERTIFICATES), "Deployment")["spec"]["template"]
    pod = Pod(template, processes, tmp_path, name="rota-0", secrets=secrets)
    assert pod.run("upgrade").wait_for_exit() == 0

    running = pod.run("rota", ROTA_DRAIN_DELAY_MS="0")
    for kind in ("startup", "readiness", "liveness"):
        running.wait_for_url(pod.probe("rota", kind))

    base = f"https://127.0.0.1:{pod.port(8080)}"
    assert _status(f"{base}/readyz", authority.client_context()) == 0
    assert _status(f"{base}/readyz", authority.client_context(authority.issue("ops", common_name="ops"))) == 200
    assert running.terminate() == 0


def _as_secret(authority: Authority, issued: Certificate) -> dict[str, str]:
    return {
        "tls.crt": issued.cert.read_text(),
        "tls.key": issued.key.read_text(),
        "ca.crt": authority.file.read_text(),
    }


def _is_ready(url: str, context: ssl.SSLContext) -> bool:
    return _status(url, context) == 200


def _status(url: str, context: ssl.SSLContext) -> int:
    try:
        return httpx.get(url, verify=context, trust_env=False).status_code
    except httpx.TransportError:
        return 0


def _volumes(manifests: list[Manifest]) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = find(manifests, "Deployment")["spec"]["template"]["spec"]["volumes"]
    return volumes


def _probes(manifests: list[Manifest]) -> list[dict[str, Any]]:
    """The probes of life, readiness and the start, without how often."""
    (server,) = find(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    probes = (server[f"{kind}Probe"] for kind in ("liveness", "readiness", "startup"))
    return [{key: probe[key] for key in ("httpGet", "tcpSocket") if key in probe} for probe in probes]
