"""Every command with wrong names, addresses, files and servers: one line on standard error, and a documented code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer

from rota.cli.commands import app
from rota.cli.exits import EXIT_MEANINGS
from tests.cli.conftest import Done, Rota
from tests.processes.server import Server
from tests.support.ports import free_port
from tests.support.processes import Processes, rota_command

pytestmark = pytest.mark.processes

REMOTE = {
    "groups list": "",
    "groups describe": "GROUP",
    "groups why": "GROUP",
    "groups watch": "GROUP -n 1",
    "groups history": "GROUP",
    "groups delete": "--yes GROUP",
    "groups rebalance": "GROUP",
    "groups freeze": "GROUP --for 1m",
    "groups unfreeze": "GROUP",
    "groups quarantine": "GROUP --after 3",
    "groups release": "GROUP docs/3",
    "groups drain": "GROUP member-1",
    "groups plan": "GROUP",
    "groups remove-member": "--yes GROUP member-1",
    "offsets list": "GROUP",
    "offsets set": "GROUP TOPIC 0 1",
    "offsets delete": "--yes GROUP TOPIC 0",
    "topics list": "",
    "topics put": "TOPIC -p 1",
    "topics get": "TOPIC",
    "topics watch": "TOPIC",
    "topics delete": "--yes TOPIC",
    "top": "--once",
    "doctor": "",
    "auth whoami": "",
    "auth can-i": "join default/GROUP",
}
"""Commands that make calls to a server, each with arguments that are right."""
MEMBERS = {
    "lead": "GROUP --instance-id INSTANCE --wait 1 -- true",
    "hold": "GROUP --instance-id INSTANCE --wait 1 -- true",
    "work": "GROUP --topic TOPIC --strategy STRATEGY --instance-id INSTANCE --wait 1 -- true",
    "sidecar": "--work GROUP --topic TOPIC --strategy STRATEGY --instance-id INSTANCE --http 127.0.0.1:0 --probes off",
}
"""Commands that are members of a group."""
ROADS = [
    (name, {**REMOTE, **MEMBERS}[name])
    for name in ("groups list", "groups watch", "auth whoami", "doctor", "lead", "work", "sidecar")
]
"""A command of each way to a server: those of one way check the address and the credentials in one place."""
RULES = '[[rules]]\nname = "members"\nsubjects = ["{subject}"]\nactions = ["member"]\n'
ON_A_STORE = {
    "db check": "",
    "db upgrade": "",
    "db wait": "--timeout 0",
    "db verify": "",
    "db restored": "",
    "journal readers": "",
    "journal prune": "--yes --keep-days 3",
    "token create": "ci",
    "token list": "",
    "token revoke": "--yes ci",
    "token forget": "ci",
    "token history": "",
    "simulate journal": "--groups 1",
}
"""Commands that work on a store."""
ELSEWHERE = {"auth check", "db backup", "db copy", "db restore", "demo", "serve", "version"} | {
    f"context {verb}" for verb in ("add", "list", "remove", "use")
}
"""Commands with tests of their own here or beside this file; those of the pipeline are in tests/pipeline."""
RIGHT = {"GROUP": "billing", "TOPIC": "orders", "STRATEGY": "range", "INSTANCE": "host-1"}
BAD_NAMES = ("bad name!", "a/b", "../x", "ü", "two\nlines", "x" * 250, "")
BAD_URLS = (
    "http://127.0.0.1:1/?x=1",
    "http://127.0.0.1:1#here",
    "nonsense",
    "ftp://x",
    "http://",
    "http://[::1",
    "http://127.0.0.1:abc",
    "http://127.0.0.1:99999",
    "http://two words",
)


def words_of(command: str, arguments: str, **replaced: str) -> list[str]:
    """The words of a command line, with names in the places that are named in capitals."""
    names = {**RIGHT, **replaced}
    last = [names.get(word, word.replace("GROUP", names["GROUP"])) for word in arguments.split()]
    return [*command.split(), *last]


def assert_one_line(done: Done, exit_code: int) -> str:
    """The line that a failed command has printed."""
    lines = done.err.splitlines()
    assert (done.exit_code, done.out, len(lines)) == (exit_code, "", 1), done
    assert exit_code in EXIT_MEANINGS
    assert lines[0].startswith("rota: ")
    return lines[0]


def leaves(command: Any, name: str = "") -> Iterator[str]:
    """The names of all commands below a command."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name
    else:
        for word, child in children.items():
            yield from leaves(child, f"{name} {word}".strip())


def test_the_tables_name_every_command() -> None:
    commands = {name for name in leaves(typer.main.get_command(app)) if not name.startswith("pipeline ")}

    assert commands == {*REMOTE, *MEMBERS, *ON_A_STORE, *ELSEWHERE}


PLACES = [
    pytest.param(command, arguments, place, id=f"{command}-{place}")
    for command, arguments in [*REMOTE.items(), *MEMBERS.items()]
    for place in ("GROUP", "TOPIC", "STRATEGY", "INSTANCE")
    if place in arguments.split()
]


@pytest.mark.parametrize(("command", "arguments", "place"), PLACES)
def test_a_wrong_name_is_refused(rota: Rota, command: str, arguments: str, place: str) -> None:
    for name in BAD_NAMES:
        if name or place != "INSTANCE":  # An empty variable of the environment means that there is none.
            done = rota(*words_of(command, arguments, **{place: name}))

            line = assert_one_line(done, 2)
            assert "must be 1 to 249 of" in line or f"no assignor {name!r}" in line


@pytest.mark.parametrize(("command", "arguments"), ROADS)
def test_a_wrong_address_is_refused(rota: Rota, command: str, arguments: str) -> None:
    for url in BAD_URLS:
        done = rota(*words_of(command, arguments), ROTA_URL=url)

        assert f"{url!r} is no" in assert_one_line(done, 2)


@pytest.mark.parametrize(("command", "arguments"), REMOTE.items())
def test_a_call_to_no_server_says_so(rota: Rota, command: str, arguments: str) -> None:
    done = rota(*words_of(command, arguments), ROTA_URL="http://127.0.0.1:1")

    if command == "doctor":
        assert (done.exit_code, "Connection refused" in done.out) == (1, True)
    else:
        assert "no server answers at http://127.0.0.1:1 ([Errno 111] Connection refused)" in assert_one_line(done, 69)


@pytest.mark.parametrize(("command", "arguments"), ROADS)
def test_a_missing_path_of_the_address_is_named(rota: Rota, command: str, arguments: str) -> None:
    done = rota(*words_of(command, arguments), ROTA_URL=f"{rota.url}/v1")

    if command == "doctor":
        assert (done.exit_code, f"{rota.url}/v1/healthz answers 404" in done.out) == (1, True)
    else:
        line = assert_one_line(done, 2)
        assert "no such route: " in line
        assert f" at {rota.url}/v1; is the path '/v1' in the address right?" in line
        assert f"Without a proxy the address is {rota.url} " in line


@pytest.mark.parametrize(("command", "arguments"), ROADS)
def test_a_file_of_credentials_that_cannot_be_read_is_named(
    rota: Rota, command: str, arguments: str, tmp_path: Path
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    missing = tmp_path / "missing"
    for file in (missing, tmp_path, binary):
        words = words_of(command, arguments)
        token = rota(*words, ROTA_TOKEN_FILE=str(file))
        authority = rota(*words, ROTA_CA_FILE=str(file))
        pair = rota(*words, ROTA_CERT_FILE=str(file), ROTA_KEY_FILE=str(file))

        assert f"the token file {file} cannot be read" in assert_one_line(token, 2)
        assert "the certificates cannot be used" in assert_one_line(authority, 2)
        assert "the certificates cannot be used" in assert_one_line(pair, 2)
    alone = rota(*words_of(command, arguments), ROTA_CERT_FILE=str(missing))
    assert "cert_file and key_file go together" in assert_one_line(alone, 2)


@pytest.mark.parametrize(("command", "arguments"), ON_A_STORE.items())
def test_a_store_that_cannot_be_used_is_one_line(rota: Rota, command: str, arguments: str, tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("no database\n" * 100)
    refused = {
        "nonsense": "a store's URL is sqlite:///",
        "mysql://me:secret@x/y": "not mysql://…",
        "postgresql://127.0.0.1:abc/x": "cannot be read: postgresql://HOST:PORT/DATABASE",
        "postgresql://me:secret@127.0.0.1:99999/x": "cannot be read: postgresql://HOST:PORT/DATABASE",
        "postgresql://[::1/x": "cannot be read: postgresql://HOST:PORT/DATABASE",
        f"sqlite:///{tmp_path}": "is a folder",
        f"sqlite:///{text}": "",
    }
    for url, says in refused.items():
        done = rota(*words_of(command, arguments), "--store", url)

        line = assert_one_line(done, 1)
        assert says in line
        assert "secret" not in line
    away = rota(*words_of(command, arguments), "--store", "postgresql://me:secret@127.0.0.1:1/x")
    assert "secret" not in assert_one_line(away, 69)


def test_sidecars_check_their_hooks_before_they_join(rota: Rota, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    wrong = {
        ("--file", str(tmp_path)): "the file cannot be written",
        ("--file", str(tmp_path / "missing" / "status")): "the file cannot be written",
        ("--file", str(empty / "status")): "the file cannot be written",
        ("--exec", "no-such-program --now"): "no such program",
        ("--exec", "'no end"): "No closing quotation",
        ("--webhook", "nonsense"): "'nonsense' is no",
        ("--webhook", "grpc://x"): "is no http:// or https:// URL",
        ("--webhook-secret-file", str(tmp_path / "missing")): "No such file or directory",
        ("--webhook-secret-file", str(empty)): "the secret is empty",
        ("--pod-label", "state"): "is this a pod?",
        ("--http", "127.0.0.1:99999"): "is not HOST:PORT",
        ("--probes", "nonsense"): "is not HOST:PORT",
    }
    for options, says in wrong.items():
        done = rota("sidecar", "--lead", "billing", *options)

        assert says in assert_one_line(done, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("lead", "billing", "--wait", "inf", "--", "true"),
        ("lead", "billing", "--wait", "nan", "--", "true"),
        ("lead", "billing", "--session-timeout-ms", "3600001", "--", "true"),
        ("lead", "billing", "--session-timeout-ms", "soon", "--", "true"),
        ("lead", "billing", "--grace-ms", "60000", "--", "true"),
        ("lead", "billing"),
        ("work", "billing", "--topic", "orders", "--drain-ms", "43200001", "--", "true"),
        ("work", "billing", "--", "true"),
        ("sidecar", "--lead", ""),
        ("sidecar", "--lead", "billing", "--revoke-timeout-ms", "9" * 400),
        ("sidecar",),
        ("groups", "remove-member", "billing", ""),
        ("groups", "watch", "billing", "--after", "soon"),
        ("offsets", "set", "--force", "billing", "orders", "0", "9" * 400),
        ("topics", "put", "orders", "-p", "9" * 400),
        ("token", "create", "ci", "--expires-in", "soon"),
        ("token", "create", "ci", "--expires-in", "9" * 30 + "d"),
        ("journal", "prune", "--keep-days", "9" * 30),
        ("db", "wait", "--timeout", "nan"),
        ("top", "--once", "--interval", "nan"),
    ],
)
def test_a_wrong_value_ends_with_2(rota: Rota, arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = rota(*arguments, ROTA_STORE=f"sqlite:///{tmp_path / 'rota.db'}")

    assert (done.exit_code, done.out) == (2, ""), done
    assert done.err
    assert "Traceback" not in done.err


@pytest.mark.thorough
@pytest.mark.parametrize("command", sorted(MEMBERS.keys() - {"sidecar"}))
def test_members_that_the_rules_refuse_end_with_4(processes: Processes, tmp_path: Path, command: str) -> None:
    rules = tmp_path / "access.toml"
    rules.write_text(RULES.format(subject="token:nobody"))
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}", "--access-file", str(rules))
    server.start_and_wait()

    refused = Rota(server.url, server.store_url, "default").as_process(*words_of(command, MEMBERS[command]))

    lines = [line for line in refused.err.splitlines() if "listening on" not in line]
    assert (refused.exit_code, len(lines)) == (4, 1), refused
    assert lines[0].startswith("rota: ")
    assert "UNAUTHENTICATED" in lines[0]


@pytest.mark.thorough
def test_commands_that_go_on_heal_when_the_rules_allow_them(processes: Processes, tmp_path: Path) -> None:
    rules, port = tmp_path / "access.toml", free_port()
    rules.write_text(RULES.format(subject="token:nobody"))
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}", "--access-file", str(rules))
    server.start_and_wait()
    to_server = {"ROTA_URL": server.url}
    lead = processes.rota("lead", "billing", "--again", "--", "true", env=to_server)
    sidecar = processes.rota(
        "sidecar", "--lead", "other", "--http", f"127.0.0.1:{port}", "--probes", "off", env=to_server
    )
    for each in (lead, sidecar):
        each.wait_for_line("not served .* retrying: UNAUTHENTICATED")

    rules.write_text(RULES.format(subject="anonymous"))

    assert lead.wait_for_exit() == 0
    sidecar.wait_for_url(f"http://127.0.0.1:{port}/leader")


@pytest.mark.parametrize("arguments", ["topics list", "--help", "groups --help", "version"])
def test_a_reader_that_closes_the_pipe_is_no_failure(rota: Rota, arguments: str) -> None:
    for number in range(3):
        rota("topics", "put", f"topic-{number}", "-p", "1")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = run(rota, *arguments.split(), stdout=closed)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_one_line(rota: Rota) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(rota, "topics", "list", stdout=full)

    assert (done.returncode, done.stderr) == (1, "rota: standard output: No space left on device\n")


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["groups watch billing --after 0", "topics watch orders"])
def test_ctrl_c_ends_a_command_that_waits_with_130(rota: Rota, processes: Processes, command: str) -> None:
    rota("topics", "put", "orders", "-p", "1")
    rota.member("billing")
    process = processes.rota(*command.split(), env=rota.environment())
    process.wait_for_line("orders|member_joined")

    process.send(signal.SIGINT)

    assert process.wait_for_exit() == 130
    assert "Traceback" not in process.output()
    assert "KeyboardInterrupt" not in process.output()


@pytest.mark.thorough
def test_ctrl_c_ends_a_simulation_with_all_its_processes(processes: Processes, tmp_path: Path) -> None:
    """A terminal sends it to the whole process group."""
    store = tmp_path / "rota.db"
    simulation = processes.rota("simulate", "journal", "--store", f"sqlite:///{store}", "--groups", "500")
    simulation.wait_until(lambda: len(psutil.Process(simulation.pid).children()) > 0, "processes of its own")

    os.killpg(simulation.pid, signal.SIGINT)

    assert simulation.wait_for_exit() == 130
    assert simulation.output() == ""


def test_ctrl_c_while_the_program_is_loaded_ends_it_with_130(rota: Rota) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING],
        env=rota.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


INTERRUPTED_WHILE_LOADING = """
import os, signal, sys
from rota.cli.main import main

class Interrupter:
    def find_spec(name, path=None, target=None):
        if name == "rota.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter)
sys.argv = ["rota", "version"]
main()
"""


def run(rota: Rota, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [rota_command(), *arguments],
        env={"PATH": "", **rota.environment()},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        **options,
    )
