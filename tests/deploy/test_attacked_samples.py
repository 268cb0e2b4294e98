"""The samples for compose and systemd, and those of proxies in front of them, refuse what attackers try at a server."""

from __future__ import annotations

import json
import re
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from rota.core.access.rules import ROLES, Rule
from rota.core.access.tokens import RANDOM_BYTES, TokenRecord, mint, parse
from rota.server.access.tokens import write_tokens
from tests.access.certificates import Authority
from tests.deploy.attacks import a_forged_join, a_look, attempts, exchange, status_of
from tests.deploy.proxies import Proxy
from tests.deploy.test_files import DEPLOY, compose, replicas
from tests.support.ports import free_port
from tests.support.processes import Processes

pytestmark = [pytest.mark.processes, pytest.mark.thorough]


@dataclass(frozen=True, slots=True)
class Sample:
    """A server with the variables of a sample; where it listens, a token of the role `member`, and its authority."""

    http: int
    grpc: int
    token: str
    tls: ssl.SSLContext | None = None


def of_compose(_folder: Path) -> dict[str, str]:
    over = compose("compose.access.yaml")["services"]["rota-1"]["environment"]
    return {**replicas()["rota-1"]["environment"], **over}


def of_systemd(folder: Path) -> dict[str, str]:
    units = [(DEPLOY / "systemd" / name).read_text() for name in ("rota.service", "reachable.conf")]
    authority = Authority(folder)
    issued, peers = authority.issue("server"), authority.issue("rota-peer")
    for name, certificate in (("server", issued), ("peers", peers)):
        (folder / f"{name}.crt").write_text(certificate.cert.read_text())
        (folder / f"{name}.key").write_text(certificate.key.read_text())
    (folder / "peers-ca.crt").write_text(authority.file.read_text())
    return dict(re.findall(r"^Environment=(\w+)=(.*)$", "\n".join(units), re.MULTILINE))


SAMPLES: dict[str, Callable[[Path], dict[str, str]]] = {"compose": of_compose, "systemd": of_systemd}


def a_sample(name: str, processes: Processes, folder: Path, **more: str) -> Sample:
    """Start a server on the sample's variables, with files, ports and store of this test."""
    folder = folder / name
    folder.mkdir()
    (folder / "access.toml").write_text((DEPLOY / "access" / "access.toml").read_text())
    (folder / "peer-secret").write_text("s" * 40)
    variables = SAMPLES[name](folder)
    here = {each: re.sub(r"/etc/rota|/run/secrets|%d", str(folder), value) for each, value in variables.items()}
    here = {each: value.replace("peer_secret", "peer-secret") for each, value in here.items()}
    http, grpc, token = free_port(), free_port(), mint(secrets.token_bytes(RANDOM_BYTES))
    presented = parse(token)
    scope = Rule("a member", ("token:member",), ROLES["member"], ("default",))
    write_tokens(folder / "tokens.json", [TokenRecord(presented.token_id, "member", presented.digest, (scope,))])
    ours = {
        "ROTA_STORE": f"sqlite:///{folder}/rota.db",
        "ROTA_ACCESS_TOKENS_FILE": str(folder / "tokens.json"),
        "ROTA_HTTP": f"127.0.0.1:{http}",
        "ROTA_GRPC": f"127.0.0.1:{grpc}",
    }
    for each in ("ROTA_REDIS", "ROTA_PEER", "ROTA_ADVERTISE"):
        here.pop(each, None)
    server = processes.rota("serve", env={**here, **ours, **more})
    server.wait_for_line('"message": "ready"')
    tls = None
    if "ROTA_TLS_CERT_FILE" in here:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return Sample(http, grpc, token, tls)


@pytest.mark.parametrize("name", SAMPLES)
async def test_a_server_of_a_sample_refuses_attempts(name: str, processes: Processes, tmp_path: Path) -> None:
    sample = a_sample(name, processes, tmp_path)
    ask = partial(exchange, sample.http, tls=sample.tls)

    answered = {each: status_of(await ask(request)) for each, (request, _) in attempts(sample.token).items()}
    joined = await ask(a_forged_join(sample.token), source="127.0.0.2")

    assert answered == {each: status for each, (_, status) in attempts(sample.token).items()}
    assert status_of(joined) == 200, joined
    assert await hosts_of_members(sample) == ["127.0.0.2"]


@pytest.mark.parametrize("proxy_name", ["nginx", "caddy", "haproxy"])
async def test_a_proxy_in_front_lets_no_attempt_through(proxy_name: str, processes: Processes, tmp_path: Path) -> None:
    sample = a_sample("compose", processes, tmp_path, ROTA_TRUSTED_PROXIES="127.0.0.1")
    proxy = Proxy(proxy_name, processes, tmp_path, http=sample.http, grpc=sample.grpc)

    answered = {
        each: status_of(await exchange(proxy.http, request)) for each, (request, _) in attempts(sample.token).items()
    }
    joined = await exchange(proxy.http, a_forged_join(sample.token), source="127.0.0.2")

    # A proxy may refuse by itself, with another status. Some drop trailers, or the length beside chunks.
    let_in = {each for each, status in answered.items() if status < 400}
    assert let_in <= {"many trailers", "two lengths"}, answered
    assert await hosts_of_members(sample) == ["127.0.0.2"] * (status_of(joined) == 200)


async def hosts_of_members(sample: Sample) -> list[str]:
    """Where the server believes that the members of the forged join are."""
    answer = await exchange(sample.http, a_look(sample.token), tls=sample.tls)
    described = json.loads(answer.partition(b"\r\n\r\n")[2])
    return [member["host"] for member in described.get("members", ())]
