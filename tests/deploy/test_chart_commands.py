"""What the chart's containers run is what this release of `rota` understands, and it works."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rota.cli.commands import app
from rota.protocol.limits import Limits
from rota.server.settings import Settings
from tests.deploy.kubelet import Pod
from tests.deploy.kubernetes import CASES, MINIMAL, Manifest, containers, find, pod_templates, render
from tests.support.processes import Processes

WITHOUT_OPTION = {"ROTA_TOKEN"}
"""Other users of a machine see options."""
OF_THE_SERVER = {f"ROTA_{name.upper()}" for name in Settings.model_fields} | {
    f"ROTA_LIMITS__{name.upper()}" for name in Limits.__dataclass_fields__
}


@pytest.mark.thorough
def test_rota_understands_the_arguments_of_every_container() -> None:
    """Parsed, not run: `--help` comes after whatever is wrong."""
    commands = {tuple(arguments) for case in CASES for arguments, _ in _commands(render(case))}

    assert {("serve",), ("db", "upgrade"), ("pipeline", "run")} <= commands
    for arguments in commands:
        answered = CliRunner().invoke(app, [*arguments, "--help"])
        assert answered.exit_code == 0, f"{arguments}: {answered.output}"


def test_rota_reads_every_variable_that_a_container_is_given() -> None:
    for arguments, variables in (given for case in CASES for given in _commands(render(case))):
        known = OF_THE_SERVER if arguments == ["serve"] else set(_variables_of(arguments))
        # The steps of the pipeline share an environment.
        of_another_step = set(_variables_of(["pipeline", "run"])) if arguments[0] == "pipeline" else set()
        assert variables <= known | of_another_step | WITHOUT_OPTION, arguments


def test_every_setting_of_the_server_is_one_of_the_chart() -> None:
    """But those that mean nothing in a pod, which holds one process of several, with gRPC where HTTP is; and origins of
    other sites' pages, budgets, and the way of requests, which belong into `extraEnv`.
    """
    commands = [command for case in CASES for command in _commands(render(case))]
    given = {variable for arguments, variables in commands if arguments == ["serve"] for variable in variables}

    settings = {f"ROTA_{name.upper()}" for name in Settings.model_fields} - {"ROTA_LIMITS", "ROTA_BUDGETS"}
    of_other_setups = {"ROTA_WORKERS", "ROTA_WORKER_PORTS", "ROTA_ADVERTISE_GRPC"}
    assert settings - given == of_other_setups | {"ROTA_ALLOW_ORIGIN", "ROTA_HTTP_DIRECT"}


@pytest.mark.slow
def test_the_rendered_release_serves_is_tested_and_drains(
    processes: Processes, postgres_dsn: str, tmp_path: Path
) -> None:
    """Init container, servers and Helm's test, each as it stands but for ports, paths and addresses."""
    values = {"server": {"drainDelayMs": 0, "shardCount": 4}}
    manifests = render(MINIMAL, values=values)
    template, test = find(manifests, "Deployment")["spec"]["template"], find(manifests, "Pod")
    secrets = {"rota": {"url": postgres_dsn, "peer-secret": "s" * 32}}
    pods = [Pod(template, processes, tmp_path, name=name, secrets=secrets) for name in ("rota-0", "rota-1")]

    # Both begin to upgrade at once, as three pods of a fresh install do.
    assert [upgrade.wait_for_exit() for upgrade in [pod.run("upgrade") for pod in pods]] == [0, 0]
    servers = [pod.run("rota") for pod in pods]
    for server, pod in zip(servers, pods, strict=True):
        server.wait_for_url(pod.probe("rota", "startup"))
        server.wait_for_url(pod.probe("rota", "readiness"))
        server.wait_for_url(pod.probe("rota", "liveness"))
    address = {"rota:8080": f"127.0.0.1:{pods[0].port(8080)}"}
    tester = Pod(test, processes, tmp_path, name="rota-test", elsewhere=address)

    assert tester.run("lists").wait_for_exit() == 0
    assert _is_served_by(pods[1].port(8080))
    assert [server.terminate() for server in servers] == [0, 0]


def _is_served_by(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return b"rota_ready 1.0" in answer.read()


def _commands(manifests: list[Manifest]) -> Iterator[tuple[list[str], set[str]]]:
    """Arguments of `rota` and the variables of ours that go with them."""
    for _, pod in pod_templates(manifests):
        for container in containers(pod):
            if "command" in container or "args" not in container:
                continue  # Not an image of ours.
            yield container["args"], _ours(container.get("env", ()))
    for one in manifests:
        if one["kind"].endswith("SparkApplication"):
            spec = one["spec"].get("template", one["spec"])
            yield spec["arguments"], _ours(spec["driver"]["env"])


def _ours(env: list[dict[str, Any]]) -> set[str]:
    return {variable["name"] for variable in env if variable["name"].startswith("ROTA_")}


def _variables_of(arguments: list[str]) -> Iterator[str]:
    """The variables that this command reads, or a command above it."""
    command: Any = _tree()
    for argument in ["", *arguments]:
        command = getattr(command, "commands", {}).get(argument, command)
        for parameter in command.params:
            yield from [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ()


@cache
def _tree() -> Any:
    return typer.main.get_command(app)
