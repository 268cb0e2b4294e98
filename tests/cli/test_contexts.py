"""Servers by name: which one a command goes to, with which credentials, and what the file looks like."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from rota.cli.commands import connection
from rota.cli.contexts import FILE_VARIABLE
from rota.cli.exits import CommandFailed
from rota.cli.options import DEFAULT_URL, Shared
from tests.cli.conftest import Rota
from tests.support.processes import rota_command

pytestmark = pytest.mark.processes


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of contexts of a user without contexts and variables."""
    path = tmp_path / "config" / "contexts.json"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    for name in ("ROTA_URL", "ROTA_NAMESPACE", "ROTA_TOKEN", "ROTA_TOKEN_FILE", "ROTA_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return path


def add(rota: Rota, name: str, *options: str) -> None:
    assert rota("context", "add", name, *options).exit_code == 0


def chosen(url: str | None = None, namespace: str | None = None, **given: Any) -> Shared:
    """What a command gets that is given these options."""
    here: Any = SimpleNamespace(invoked_subcommand="groups")
    files = {name: given.get(name) for name in ("token_file", "ca_file", "cert_file", "key_file")}
    return connection(here, url, namespace, None, **files, use_context=given.get("use_context"))


def test_contexts_are_added_used_listed_and_removed(rota: Rota, file: Path) -> None:
    add(rota, "prod", "--url", "https://rota.example", "--namespace", "billing", "--token-file", "worker.token")
    add(rota, "here", "--url", rota.url)
    used = rota("context", "use", "here")
    listed = json.loads(rota("context", "list", "-o", "json").out)
    removed = rota("context", "remove", "here")

    assert used.err == f"context here is in use: {rota.url}, namespace default\n"
    assert [(each["name"], each["in_use"]) for each in listed] == [("here", True), ("prod", False)]
    assert Path(listed[1]["token_file"]).is_absolute()
    assert removed.exit_code == 0
    assert rota("context", "list", "-o", "name").out == "prod\n"
    assert rota("context", "use", "here").exit_code == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_first_context_is_in_use(rota: Rota, file: Path) -> None:
    rota.member("indexers")
    add(rota, "here", "--url", rota.url, "--namespace", rota.namespace)

    command = [str(rota_command()), "groups", "list", "-o", "name"]
    listed = subprocess.run(
        command, env={FILE_VARIABLE: str(file)}, capture_output=True, text=True, timeout=60, check=False
    )

    assert (listed.stdout, listed.stderr) == ("indexers\n", "")


def test_options_and_the_environment_win_over_a_context(rota: Rota, file: Path) -> None:
    add(rota, "prod", "--url", "https://rota.example", "--namespace", "billing")
    add(rota, "test", "--url", "https://test.example")

    assert (chosen().url, chosen().namespace) == ("https://rota.example", "billing")
    assert chosen(namespace="search").namespace == "search"
    assert chosen(url="http://127.0.0.1:1").url == "http://127.0.0.1:1"
    assert chosen(use_context="test").url == "https://test.example"
    with pytest.raises(CommandFailed, match=r"there is no context pord \(known: prod, test\)"):
        chosen(use_context="pord")


def test_the_token_of_a_context_goes_to_its_server_alone(rota: Rota, file: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    add(rota, "prod", "--url", "https://rota.example", "--token-file", str(token))

    assert chosen().credentials.token_file == token
    assert chosen(url="https://elsewhere.example").credentials.token_file is None
    assert chosen().with_given("https://elsewhere.example", None).credentials.token_file is None
    assert chosen().with_given(None, "search").credentials.token_file == token
    assert chosen(token_file=tmp_path / "mine").credentials.token_file == tmp_path / "mine"


def test_without_a_context_the_server_is_the_default(file: Path) -> None:
    assert (chosen().url, chosen().namespace) == (DEFAULT_URL, "default")
    assert not file.exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"contexts": {"a": {"uri": "x"}}, "current": null}'])
def test_a_file_that_is_none_is_one_line(rota: Rota, file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)

    failed = rota("groups", "list")

    assert (failed.exit_code, failed.err.count("\n")) == (1, 1)
    assert f"rota: {file} is no file of contexts" in failed.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rota groups describe in", ["indexers", "invoices"]),
        ("rota topics get wo", ["words"]),
        ("rota --url http://127.0.0.1:1 groups describe in", []),
    ],
)
def test_the_shell_completes_names(rota: Rota, words: str, expected: list[str]) -> None:
    for group in ("indexers", "invoices", "other"):
        rota("offsets", "set", "--force", group, "t", "0", "7")
    rota("topics", "put", "words", "-p", "1")

    assert completed(rota, words) == expected


def completed(rota: Rota, words: str) -> list[str]:
    """What the shell is offered for the last word; nothing else may be printed."""
    asks = {"_ROTA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(
        [str(rota_command())], env=rota.environment() | asks, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.thorough
def test_the_shell_completes_members_of_the_group_before(rota: Rota) -> None:
    join = {
        "group_instance_id": "worker-1",
        "protocol_type": "worker",
        "protocols": [{"name": "p", "metadata": ""}],
        "wait_ms": 0,
    }
    url = f"{rota.url}/v1/namespaces/{rota.namespace}/groups/workers/join"
    member_id = httpx.post(url, json=join).json()["member_id"]

    assert completed(rota, "rota groups drain workers work") == ["worker-1", member_id]
    assert completed(rota, "rota groups remove-member workers work") == [member_id]
    assert completed(rota, "rota groups drain nowhere work") == []


@pytest.mark.thorough
def test_the_shell_completes_namespaces(rota: Rota) -> None:
    rota("topics", "put", "words", "-p", "1")

    assert completed(rota, f"rota --namespace {rota.namespace[:-1]}") == [rota.namespace]
    assert completed(rota, f"rota groups list --namespace {rota.namespace[:-1]}") == [rota.namespace]
