"""What deploy/ has for machines without Kubernetes: the image, compose, systemd, PgBouncer. No engine runs here."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rota.cli.commands import app
from rota.core.access.sources import Proxies
from rota.server.console.app import Console
from rota.server.http.app import create_app
from rota.server.http.draining import Draining
from rota.server.observability.metrics import Metrics
from rota.server.settings import Settings
from rota.storage.store import SqlStore
from tests.http.routes import routes_of
from tests.http.scripted import ScriptedCoordinator
from tests.support.pgbouncer import PgBouncer
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
PLACEHOLDER = re.compile(r"\$\{(\w+)[^}]*\}")


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    """A file of deploy/ with the variables of its example."""
    pairs = (line.split("=", 1) for line in (DEPLOY / "example.env").read_text().splitlines() if "=" in line[:40])
    variables = {name: value for name, value in pairs if name.isidentifier()}
    text = PLACEHOLDER.sub(lambda found: variables[found[1]], (DEPLOY / name).read_text())
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def replicas() -> dict[str, dict[str, Any]]:
    return {name: service for name, service in compose()["services"].items() if re.fullmatch(r"rota-\d", name)}


def ours(service: dict[str, Any]) -> bool:
    return bool(service["image"] == "rota")


def settings_of(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What a server makes of these variables and no others of ours."""
    with monkeypatch.context() as environment:
        for variable in [variable for variable in os.environ if variable.startswith("ROTA_")]:
            environment.delenv(variable)
        for variable, value in variables.items():
            environment.setenv(variable, value)
        return Settings()


def tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name(name)), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_hadolint_has_nothing_to_say_of_the_dockerfile() -> None:
    checked = tool("hadolint", "--failure-threshold", "style", DEPLOY / "Dockerfile")

    assert checked.returncode == 0, checked.stdout


def test_the_image_has_no_root_no_shell_and_existing_files() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]

    assert "distroless" in last_stage[0]
    assert [line for line in last_stage if line.startswith("USER ")] == ["USER 65532:65532"]
    assert not [line for line in last_stage if line.startswith("RUN ")]
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            assert all((REPOSITORY / source).exists() for source in line.split()[1:-1]), line


@pytest.mark.slow
def test_what_the_image_installs_serves_by_itself(processes: Processes, tmp_path: Path) -> None:
    """The RUN lines of the Dockerfile, without an engine: into a folder, and then no environment of ours."""
    target, builder = tmp_path / "rota", tmp_path / "builder"
    dockerfile = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").replace("/opt/rota", str(target))
    installs = re.findall(r"\bpip install (.*?)\s*(?:&&|\n)", dockerfile)
    assert len(installs) == 3
    subprocess.run([sys.executable, "-m", "venv", builder], check=True, timeout=60)
    for install in installs:
        pip = [str(builder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, *shlex.split(install)], cwd=REPOSITORY, check=True, timeout=300)
    port, base = free_port(), Path(getattr(sys, "_base_executable", sys.executable)).resolve()

    environment = {"PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}

    server = processes.start(
        *(base, "-m", "rota", "serve", "--store", f"sqlite:///{tmp_path}/rota.db"),
        *("--http", f"127.0.0.1:{port}", "--grpc", f"127.0.0.1:{free_port()}"),
        env=environment,
    )

    server.wait_for_url(f"http://127.0.0.1:{port}/readyz")
    server.wait_for_url(f"http://127.0.0.1:{port}/")
    # Modules that are imported only where they are used: issuers' tokens, signed fencing tokens, Postgres, Redis.
    modules = ("rota.server.access.issuers", "rota.fencing.tokens", "asyncpg", "rota.server.liveness.redis")
    for module in modules:
        assert processes.start(base, "-c", f"import {module}", env=environment).wait_for_exit() == 0, module
    _, _, *healthcheck = replicas()["rota-1"]["healthcheck"]["test"]
    check = [base, *(part.replace(":8080", f":{port}") for part in healthcheck)]
    assert subprocess.run(check, check=False, timeout=30).returncode == 0
    assert server.terminate() == 0
    assert subprocess.run(check, check=False, timeout=30, stderr=subprocess.DEVNULL).returncode == 1


@pytest.mark.parametrize("name", ["compose.yaml", "compose.access.yaml"])
def test_compose_is_valid_by_its_specification(name: str) -> None:
    checked = tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / name)

    assert checked.returncode == 0, checked.stdout


def test_compose_runs_three_replicas_that_reach_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    assert len(replicas()) == 3

    for name, service in replicas().items():
        settings = settings_of({**service["environment"], "ROTA_PEER_SECRET_FILE": str(secret)}, monkeypatch)
        assert settings.is_open_to_all
        assert str(settings.peer) == f"{name}:7100"
        assert settings.advertise == f"http://{name}:8080"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        # Docker kills what has not stopped by then.
        assert (
            int(service["stop_grace_period"].rstrip("s")) * 1000 > settings.drain_delay_ms + settings.drain_timeout_ms
        )


def test_compose_trusts_its_proxy_and_no_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers of a published port come from the gateway's address, with any header that they like."""
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    network = compose()["networks"]["default"]["ipam"]["config"][0]
    nginx = compose()["services"]["nginx"]["networks"]["default"]["ipv4_address"]
    gateways = [str(subnet[1]) for subnet in ip_network("172.16.0.0/12").subnets(new_prefix=16)]

    for service in replicas().values():
        settings = settings_of({**service["environment"], "ROTA_PEER_SECRET_FILE": str(secret)}, monkeypatch)
        proxies = Proxies(settings.trusted_proxies)
        assert proxies.client_of(nginx, [f"6.6.6.6, {network['gateway']}"]) == network["gateway"]
        assert not any(proxies.trust(gateway) for gateway in [*gateways, "192.168.0.1", network["gateway"]])
    assert ip_address(nginx) in ip_network(network["subnet"])


def test_haproxy_lets_in_what_is_for_clients(tmp_path: Path) -> None:
    """Every route but that of the metrics, those of the console as well."""
    text = (DEPLOY / "proxy" / "haproxy.cfg").read_text()
    lists = re.findall(r"acl public var\(txn\.path\) -m (beg|str) (.+)", text)
    beginnings = tuple(path for how, paths in lists if how == "beg" for path in paths.split())
    names = {path for how, paths in lists if how == "str" for path in paths.split()}
    api = create_app(ScriptedCoordinator())
    console = Console(ScriptedCoordinator(), SqlStore(f"sqlite:///{tmp_path}/rota.db"), Metrics(), Draining(), dict)
    routes = {route.path for route in (*routes_of(api.fastapi), *routes_of(console.router()))}

    inside = {path for path in routes if path not in names and not path.startswith(beginnings)}

    assert inside == {"/metrics"}


def test_compose_asks_for_tokens_where_one_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    over = compose("compose.access.yaml")["services"]
    assert over.keys() == replicas().keys()

    for name, service in replicas().items():
        mounted, _, where = over[name]["volumes"][0].removesuffix(":ro").partition(":")
        variables = {**service["environment"], "ROTA_PEER_SECRET_FILE": str(secret), **over[name]["environment"]}
        variables["ROTA_ACCESS_FILE"] = variables["ROTA_ACCESS_FILE"].replace(where, str(DEPLOY / mounted))
        settings = settings_of(variables, monkeypatch)
        assert not settings.is_open_to_all
        assert not settings.allow_anonymous


def test_compose_publishes_loopback_only_and_pins_images() -> None:
    for service in compose()["services"].values():
        for source, _, _ in (volume.partition(":") for volume in service.get("volumes", ())):
            assert not source.startswith(".") or (DEPLOY / source).exists(), source
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert service["image"] == "rota" or re.search(r":v?\d", service["image"])


@pytest.mark.thorough
def test_rota_understands_commands_of_compose_image_and_unit() -> None:
    """Parsed, not run: `--help` comes after whatever is wrong."""
    (default,) = re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    commands = [
        service.get("command", json.loads(default)) for service in compose()["services"].values() if ours(service)
    ]
    unit = (DEPLOY / "systemd" / "rota.service").read_text()
    commands += [line.replace("…", "URL").split() for line in re.findall(r"/bin/rota (\S+(?: [-\w…]+)*)", unit)]

    assert len(commands) == 4 + 2
    for command in commands:
        parsed = CliRunner().invoke(app, [*command, "--help"])
        assert parsed.exit_code == 0, f"{command}: {parsed.output}"


def test_the_unit_sets_known_options_and_waits_for_its_drain() -> None:
    unit = (DEPLOY / "systemd" / "rota.service").read_text()
    settings = dict(re.findall(r"^Environment=ROTA_(\w+)=(.*)$", unit, re.MULTILINE))
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)

    assert {name.lower() for name in settings} <= Settings.model_fields.keys()
    assert int(stop_s) * 1000 > int(settings["DRAIN_TIMEOUT_MS"])


def test_the_unit_is_guarded_where_it_is_reachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the files that the two say are to be there."""
    (tmp_path / "peer-secret").write_text("s" * 40)
    shutil.copy(DEPLOY / "access" / "access.toml", tmp_path)
    units = [(DEPLOY / "systemd" / name).read_text() for name in ("rota.service", "reachable.conf")]
    variables = dict(re.findall(r"^Environment=(\w+)=(.*)$", "\n".join(units), re.MULTILINE))
    here = {
        name: value.replace("%d", str(tmp_path)).replace("/etc/rota", str(tmp_path))
        for name, value in variables.items()
    }

    settings = settings_of({**here, "ROTA_PEER": "192.0.2.1:7100"}, monkeypatch)

    assert not settings.is_open_to_all
    installed = re.findall(r"[\w-]+\.(?:crt|key|toml)", units[1].partition("[Service]")[0])
    assert set(installed) == {Path(value).name for name, value in variables.items() if value.startswith("/etc/rota/")}


@pytest.mark.slow
def test_a_store_is_upgraded_and_served_through_pgbouncer(
    postgres_server: PostgresServer, postgres_dsn: str, processes: Processes
) -> None:
    """All of the sample but its addresses and logins."""
    sample = configparser.ConfigParser(interpolation=None)
    sample.read(DEPLOY / "pgbouncer" / "pgbouncer.ini")
    elsewhere = ("listen_", "auth_", "unix_")
    settings = {name: value for name, value in sample["pgbouncer"].items() if not name.startswith(elsewhere)}
    port = free_port()

    with PgBouncer(postgres_server, settings=settings) as pooler:
        store = pooler.through(postgres_dsn)
        upgraded = processes.rota("db", "upgrade", "--store", store)
        assert upgraded.wait_for_exit() == 0
        server = processes.rota("serve", "--store", store, "--http", f"127.0.0.1:{port}", "--shard-count", "4")
        server.wait_for_url(f"http://127.0.0.1:{port}/readyz")
        assert server.terminate() == 0
