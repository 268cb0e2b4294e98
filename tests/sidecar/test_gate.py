"""What a sidecar refuses: other sites' pages, names that are not its own, and programs without its token."""

from __future__ import annotations

import stat
from pathlib import Path

import httpx
import pytest

from rota.agents.sidecar.listening import CannotListen, bound
from rota.agents.sidecar.settings import Address
from tests.sidecar.sidecars import Sidecars

pytestmark = pytest.mark.processes

GETS = ("/", "/leader", "/follower", "/assignments", "/events", "/wait?for=leader&timeout=30")
POSTS = ("/progress", "/resign", "/drain")
FOREIGN = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "https://evil.example", "content-type": "text/plain"},
    {"origin": "null"},
    {"host": "evil.example"},
    {"host": "evil.example:4040", "origin": "http://evil.example:4040", "sec-fetch-site": "same-origin"},
]
OWN: list[dict[str, str]] = [{}, {"host": "localhost:4040"}, {"sec-fetch-site": "same-origin"}]
TOKEN = "programs-of-this-pod-only"
WRONG_TOKENS = [{}, *({"authorization": shown} for shown in (f"Bearer {TOKEN}x", TOKEN, "Bearer", f"Basic {TOKEN}"))]
WRONG_OPTIONS = [["--listen", "unix:"], ["--allow-host", "http://a"], ["--http-token-file", "none"]]


def test_a_foreign_page_gets_nothing_of_a_sidecar(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    sidecar.until(lambda status: status["state"] == "leader", "leader")
    with httpx.Client(base_url=sidecar.url, trust_env=False) as http:
        for headers in FOREIGN:
            places = [("GET", path) for path in GETS] + [("POST", path) for path in POSTS]
            got = [http.request(method, path, headers=headers, content=b"") for method, path in places]
            assert {answer.status_code for answer in got} == {403}
            assert not any("fencing_token" in answer.text for answer in got)
        for headers in OWN:
            assert http.get("/leader", headers=headers).json()["self"] is True
        assert http.post("/drain", headers=OWN[2]).status_code == 200


def test_a_unix_socket_is_its_users_alone(sidecars: Sidecars, tmp_path: Path) -> None:
    path = tmp_path / "s"
    sidecar = sidecars.start("--listen", f"unix:{path}")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport, base_url="http://sidecar", timeout=30) as http:
        assert http.get("/wait?for=leader&timeout=30").json()["self"] is True
        assert http.post("/drain", headers={"origin": "https://evil.example"}).status_code == 403
        assert http.post("/drain").status_code == 200
    assert sidecar.process.terminate() == 0
    assert not path.exists()


def test_a_program_without_the_token_gets_nothing(sidecars: Sidecars, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    sidecar = sidecars.start("--http-token-file", file)
    shown = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=sidecar.url, trust_env=False, timeout=30) as http:
        for wrong in WRONG_TOKENS:
            assert [http.get(path, headers=wrong).status_code for path in GETS] == [401] * len(GETS)
            assert [http.post(path, headers=wrong).status_code for path in POSTS] == [401] * len(POSTS)
        assert http.get("/", headers={**shown, "sec-fetch-site": "cross-site"}).status_code == 403
        assert http.get("/wait?for=leader&timeout=30", headers=shown).json()["self"] is True
        file.write_text("another-token-for-this-pod")
        assert http.get("/", headers=shown).status_code == 401
        assert http.get("/", headers={"authorization": "Bearer another-token-for-this-pod"}).status_code == 200
        file.unlink()
        assert http.get("/", headers={"authorization": "Bearer another-token-for-this-pod"}).status_code == 200
    assert sidecar.probe("healthz") == 200


@pytest.mark.thorough
@pytest.mark.parametrize("options", WRONG_OPTIONS)
def test_a_wrong_option_of_the_gate_is_named(sidecars: Sidecars, options: list[str]) -> None:
    process = sidecars.processes.rota("sidecar", "--lead", "g", *options)

    assert process.wait_for_exit() == 2
    assert options[1] in process.output()


@pytest.mark.thorough
def test_a_socket_that_a_killed_sidecar_left_is_taken_over(sidecars: Sidecars, tmp_path: Path) -> None:
    path = tmp_path / "s"
    killed = sidecars.start("--listen", f"unix:{path}")
    killed.process.kill9()
    assert path.is_socket()

    again = sidecars.start("--listen", f"unix:{path}", name="pod-1")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://sidecar") as http:
        assert http.get("/").status_code == 200
    assert again.process.terminate() == 0


def test_a_host_that_is_no_text_cannot_be_listened_on() -> None:
    with pytest.raises(CannotListen, match="cannot listen on"), bound(Address("\udcff", 4040)):
        raise AssertionError
