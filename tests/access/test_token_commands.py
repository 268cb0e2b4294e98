"""`rota token` and `rota auth`: tokens of a store that a server runs on, of a file, and what rules say."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Done, Rota
from tests.processes.server import Server
from tests.support.processes import Processes

pytestmark = pytest.mark.processes
ACCESS = """
[[rules]]
name = "viewers of everything"
subjects = ["token:viewer"]
actions = ["viewer"]

[[rules]]
name = "frozen for the audit"
subjects = ["*"]
actions = ["join"]
namespaces = ["team-a"]
groups = ["ledger*"]
effect = "deny"
"""


@pytest.fixture
def access_file(tmp_path: Path) -> Path:
    file = tmp_path / "access.toml"
    file.write_text(ACCESS)
    return file


@pytest.fixture
def rota() -> Rota:
    """For commands that ask no server."""
    return Rota("http://127.0.0.1:9", "", "default")


@pytest.mark.slow
def test_a_token_is_made_and_revoked_under_a_running_server(
    processes: Processes, tmp_path: Path, access_file: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'rota.db'}"
    server = Server(processes, store, "--access-file", str(access_file))
    server.start_and_wait()
    rota = Rota(server.url, store, "team-a")

    def as_(token: str) -> Done:
        return rota("groups", "list", ROTA_TOKEN=token)

    token = rota("token", "create", "ci", "--allow", "viewer", "--namespace", "team-a", "--store", store).out.strip()
    unscoped = rota("token", "create", "viewer", "--store", store).out.strip()

    assert as_(token).exit_code == as_(unscoped).exit_code == 0
    assert as_("").exit_code == as_(token[:-1]).exit_code == 4
    assert rota("groups", "list", "--namespace", "team-b", ROTA_TOKEN=token).exit_code == 4
    assert rota("groups", "list", "--namespace", "team-b", ROTA_TOKEN=unscoped).exit_code == 0

    def used() -> dict[str, bool]:
        listed = json.loads(rota("token", "list", "--store", store, "-o", "json").out)
        return {each["name"]: each["last_used_at_ms"] is not None for each in listed}

    rota("token", "create", "spare", "--store", store)
    server.process.wait_until(lambda: used() == {"ci": True, "viewer": True, "spare": False}, "the tokens' last use")

    assert rota("token", "revoke", "--yes", "ci", "--store", store).exit_code == 0
    server.process.wait_until(lambda: as_(token).exit_code == 4, "refusal of the revoked token")
    assert as_(unscoped).exit_code == 0
    listed = json.loads(rota("token", "list", "--store", store, "-o", "json").out)
    assert [(each["name"], each["state"]) for each in listed] == [
        ("ci", "revoked"),
        ("viewer", "good"),
        ("spare", "good"),
    ]
    for secret in (token, unscoped):
        assert secret.split("_")[2] not in server.process.output()
        assert secret.split("_")[2].encode() not in (tmp_path / "rota.db").read_bytes()


def test_tokens_may_be_kept_in_a_file(rota: Rota, tmp_path: Path) -> None:
    file = str(tmp_path / "tokens.json")

    made = rota("token", "create", "ci", "--file", file, "--allow", "member", "--group", "bill*", "--expires-in", "1d")
    listed = json.loads(rota("token", "list", "--file", file, "-o", "json").out)

    assert made.exit_code == 0
    assert made.out.startswith("rota_")
    assert [(each["name"], each["state"], each["scope"]) for each in listed] == [
        ("ci", "good", ["commit,describe,join in default"])
    ]
    assert (tmp_path / "tokens.json").stat().st_mode & 0o077 == 0
    assert rota("token", "forget", "ci", "--file", file).exit_code == 5
    assert rota("token", "revoke", "--yes", listed[0]["token_id"], "--file", file).exit_code == 0
    assert rota("token", "forget", "ci", "--file", file).exit_code == 0
    assert rota("token", "list", "--file", file, "-o", "name").out == ""


DAY_MS = 86_400_000


def test_a_token_expires_unless_its_maker_says_that_it_does_not(rota: Rota, tmp_path: Path) -> None:
    file = ("--file", str(tmp_path / "tokens.json"))
    lives = {
        "plain": (),
        "brief": ("--expires-in", "13d"),
        "month": ("--expires-in", "15d"),
        "ever": ("--never-expires",),
    }

    shown = {name: rota("token", "create", name, *options, *file).err for name, options in lives.items()}
    listed = rota("token", "list", *file, "-o", "json")
    table = rota("token", "list", *file)

    days = {
        each["name"]: each["expires_at_ms"] and (each["expires_at_ms"] - each["created_at_ms"]) // DAY_MS
        for each in json.loads(listed.out)
    }
    assert days == {"plain": 90, "brief": 13, "month": 15, "ever": None}
    assert (
        "expires in 89d" in shown["plain"] or "in 90d" in shown["plain"],
        "never expires" in shown["ever"],
    ) == (
        True,
        True,
    )
    for done in (listed, table):
        assert [line.split("(")[1].split(")")[0] for line in done.err.splitlines()] == ["brief"]
        assert "create another one of that name" in done.err
    assert "never" in table.out


def test_a_token_is_written_for_its_owner_alone(rota: Rota, tmp_path: Path) -> None:
    """Also where another file, or a link to one, is in its place."""
    tokens, out, elsewhere = tmp_path / "tokens.json", tmp_path / "worker.token", tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    out.symlink_to(elsewhere)
    before = os.umask(0o022)
    try:
        made = rota("token", "create", "ci", "--out", str(out), "--file", str(tokens))
        first = out.read_text()
        failed = rota("token", "create", "ci", "--out", str(out), "--file", str(elsewhere))
        stayed = out.read_text() == first
        again = rota("token", "create", "ci", "--out", str(out), "--file", str(tokens))
    finally:
        os.umask(before)

    assert (made.exit_code, made.out, failed.exit_code, again.exit_code) == (0, "", 1, 0)
    assert "rota_" not in made.err
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert (stayed, out.read_text() != first, out.read_text().startswith("rota_")) == (True, True, True)
    assert (elsewhere.read_text(), out.is_symlink()) == ("kept", False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["elsewhere", "tokens.json", "worker.token"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("create", "a b"), 2, "a token's name is"),
        (("create", "ci", "--allow", "fly"), 2, "Invalid enum value 'fly'"),
        (("create", "ci", "--expires-in", "soon"), 2, "--expires-in must be"),
        (("create", "ci", "--expires-in", "1d", "--never-expires"), 2, "either --expires-in or --never-expires"),
        (("create", "ci", "--out", "/no/such/folder/token"), 1, "/no/such/folder/token cannot be written"),
        (("create", "ci", "--out", "/"), 1, "/ cannot be written: it is a folder"),
        (("revoke", "nobody"), 3, "there is no token nobody"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    rota: Rota, tmp_path: Path, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    done = rota("token", *arguments, "--file", str(tmp_path / "tokens.json"))

    assert done.exit_code == exit_code
    assert message in done.err


def test_a_guarded_server_knows_its_caller(processes: Processes, tmp_path: Path, access_file: Path, rota: Rota) -> None:
    tokens = str(tmp_path / "tokens.json")
    token = rota("token", "create", "viewer", "--file", tokens, "--expires-in", "90d").out.strip()
    options = ("--access-file", str(access_file), "--access-tokens-file", tokens)
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}", *options)
    server.start_and_wait()

    def ask(*arguments: str, token: str = token) -> Done:
        return rota("auth", *arguments, "--url", server.url, ROTA_TOKEN=token, ROTA_ACCESS_FILE=str(access_file))

    allowed = ask("can-i", "describe", "team-a/billing", "-o", "json")
    denied = ask("can-i", "join", "team-a/ledger-1", "-o", "json")
    who = json.loads(ask("whoami", "-o", "json").out)
    mistyped = ask("whoami", token=token[:-1])

    assert (allowed.exit_code, json.loads(allowed.out)["rule"]) == (0, "viewers of everything")
    assert (denied.exit_code, json.loads(denied.out)["rule"]) == (4, "frozen for the audit")
    assert (who["subject"], len(who["rules"])) == ("token:viewer", 2)
    assert "in 89d" in ask("whoami").out
    assert ask("whoami", "-o", "name").out == "token:viewer\n"
    assert (mistyped.exit_code, "checksum" in mistyped.err) == (4, True)
    assert ask("can-i", "metrics", "server").exit_code == 4
    assert ask("can-i", "describe", "team-a/billing", "--as", "anonymous").exit_code == 2


def test_an_access_file_is_asked_of_somebody(rota: Rota, access_file: Path) -> None:
    nobody = rota("auth", "can-i", "join", "team-a/billing", "--access-file", str(access_file))
    nothing = rota("auth", "can-i", "join", "team-a/billing", "--as", "token:ci")

    assert (nobody.exit_code, nothing.exit_code) == (2, 2)
    assert "--access-file requires --as" in nobody.err
    assert "a server answers only for the caller itself" in nothing.err


def test_a_wrong_access_file_is_found_before_a_server_uses_it(rota: Rota, tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text('[[rules]]\nname = "r"\nsubjects = ["*"]\nactions = ["fly"]\n')

    checked = rota("auth", "check", "--access-file", str(file))
    served = rota("serve", "--access-file", str(file))

    assert checked.exit_code == 1
    assert served.exit_code == 2
    assert "rule 'r': Invalid enum value 'fly' - at `$.actions[0]`; there are describe" in checked.err
    assert "rule 'r': Invalid enum value 'fly' - at `$.actions[0]`; there are describe" in served.err


def test_beyond_loopback_a_server_without_rules_must_be_meant(rota: Rota) -> None:
    refused = rota("serve", "--http", "0.0.0.0:0")

    assert refused.exit_code == 2
    assert "listening beyond loopback needs --access-file, --tls-client-ca-file or --allow-anonymous" in refused.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--log-format", "yaml"), "--log-format (ROTA_LOG_FORMAT): Input should be 'text' or 'json'"),
        (("--tls-cert-file", "cert.pem"), "--tls-cert-file, --tls-key-file go together"),
        (("--peer", "0.0.0.0:0"), "peer beyond loopback needs --peer-secret-file or --peer-tls-ca-file"),
    ],
)
def test_a_wrong_setting_is_named_by_its_option(rota: Rota, arguments: tuple[str, str], why: str) -> None:
    refused = rota("serve", *arguments)

    assert refused.exit_code == 2
    assert why in refused.err
