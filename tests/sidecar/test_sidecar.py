"""`rota sidecar` as the program beside it sees it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.processes.server import Server
from tests.sidecar.sidecars import SESSION_MS, SHORT_SESSION_MS, Sidecars
from tests.support.link import Link
from tests.support.processes import Processes
from tests.support.spies import SPY, WITHOUT_CAPABILITIES

pytestmark = pytest.mark.processes


@pytest.mark.thorough
def test_it_answers_like_the_old_elector_and_adds_more(sidecars: Sidecars) -> None:
    first = sidecars.start(name="pod-0")
    leader = first.until(lambda status: status["state"] == "leader", "leader")
    second = sidecars.start(name="pod-1")
    follower = second.until(lambda status: status["state"] == "follower", "follower")

    name = f"{sidecars.group}-pod-0"
    assert (leader["name"], leader["self"], follower["name"], follower["self"]) == (name, True, name, False)
    assert leader["fencing_token"] >= 1
    assert follower["fencing_token"] is None
    assert 0 < leader["expires_in_ms"] < SESSION_MS
    assert leader["last_update"] is not None
    assert [one.get(path).status_code for one in (first, second) for path in ("/leader", "/follower")] == [
        200,
        503,
        503,
        200,
    ]
    assert [first.probe(name) for name in ("healthz", "startupz", "readyz")] == [200, 200, 200]
    assert [second.probe(name) for name in ("healthz", "startupz", "readyz")] == [200, 200, 200]

    token = leader["fencing_token"]
    assert first.process.terminate() == 0
    assert second.get("/wait?for=leader&timeout=20").status_code == 200
    assert second.status()["fencing_token"] > token


async def test_a_name_is_never_stale_and_unreachable_is_not_forever(sidecars: Sidecars) -> None:
    async with Link(int(sidecars.server_url.rpartition(":")[2])) as link, httpx.AsyncClient(trust_env=False) as http:
        # Waiting for its start must not hold up the link, which is on this loop.
        cut_off = await asyncio.to_thread(sidecars.start, url=link.url, session_ms=SHORT_SESSION_MS)
        await http.get(f"{cut_off.url}/wait?for=leader&timeout=20", timeout=30)
        link.cut()
        lost = await http.get(f"{cut_off.url}/wait?for=change&timeout=20", timeout=30)
        assert "cannot" in lost.json()["trouble"] or "no answer" in lost.json()["trouble"]
        assert lost.json() | {"last_update": None, "trouble": ""} == {
            "name": "",
            "self": False,
            "state": "unknown",
            "group": sidecars.group,
            "member_id": "",
            "generation": -1,
            "fencing_token": None,
            "assignment": [],
            "expires_in_ms": 0,
            "trouble": "",
            "last_update": None,
        }
        assert (await http.get(f"{cut_off.url}/leader")).status_code == 503
        link.heal()

        back = await http.get(f"{cut_off.url}/wait?for=leader&timeout=20", timeout=30)
        assert (back.status_code, back.json()["state"]) == (200, "leader")


def test_a_misspelt_parameter_is_refused_with_the_nearest_one(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    answers = [
        sidecar.get("/wait?for=change&tmeout=20"),
        sidecar.post("/resign?pause=100"),
        *(sidecar.get(f"{path}?when=now") for path in ("/", "/leader", "/follower", "/assignments", "/events")),
        *(sidecar.post(f"{path}?when=now") for path in ("/progress", "/drain")),
    ]

    assert {answer.status_code for answer in answers} == {400}
    assert [answer.json()["detail"] for answer in answers[:3]] == [
        "unknown query parameter 'tmeout'; did you mean 'timeout'?",
        "unknown query parameter 'pause'; did you mean 'pause_ms'?",
        "unknown query parameter 'when'; this call has none",
    ]
    assert sidecar.probe("readyz") == 200


@pytest.mark.slow
def test_who_resigns_comes_back_and_who_drains_does_not(sidecars: Sidecars) -> None:
    first = sidecars.start(name="pod-0")
    first.get("/wait?for=leader&timeout=20")
    second = sidecars.start(name="pod-1")
    second.get("/wait?for=follower&timeout=20")

    resigned = first.post("/resign?pause_ms=100").json()
    assert resigned["state"] != "leader"
    assert second.get("/wait?for=leader&timeout=20").status_code == 200
    assert first.get("/wait?for=follower&timeout=20").status_code == 200

    drained = second.post("/drain").json()
    assert (drained["state"], drained["name"]) == ("draining", "")
    assert second.probe("readyz") == 503
    assert first.get("/wait?for=leader&timeout=20").status_code == 200
    assert second.process.terminate() == 0


def test_a_program_that_hangs_loses_its_place_until_it_gets_on(sidecars: Sidecars) -> None:
    sidecar = sidecars.start("--progress-timeout-ms", "500")
    sidecar.get("/wait?for=leader&timeout=20")

    sidecar.process.wait_for_line("no progress for 0.5 s")
    sidecar.until(lambda status: status["state"] == "unknown", "resigned")
    assert sidecar.post("/progress").status_code == 204

    def leads_while_it_gets_on() -> bool:
        return sidecar.post("/progress").status_code == 204 and sidecar.status()["state"] == "leader"

    sidecar.process.wait_until(leads_while_it_gets_on, "leader again")


def test_events_are_sent_as_they_happen_and_missed_ones_later(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    sidecar.get("/wait?for=leader&timeout=20")

    def read(last_event_id: str, count: int) -> list[dict[str, str]]:
        headers = {"Last-Event-ID": last_event_id}
        frames: list[dict[str, str]] = [{}]
        with httpx.stream("GET", f"{sidecar.url}/events", headers=headers, trust_env=False, timeout=20) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            for line in stream.iter_lines():
                name, _, value = line.partition(": ")
                if not line and len(frames) == count:
                    return frames
                frames = [*frames, {}] if not line else [*frames[:-1], {**frames[-1], name: value}]
        return frames

    (first,) = read("", 1)
    sidecar.post("/resign?pause_ms=0")
    reported = read(first["id"], 3)

    assert first["event"] == "elected"
    assert [frame["event"] for frame in reported] == ["revoked", "unknown", "elected"]
    tokens = [json.loads(frame["data"])["fencing_token"] for frame in (first, *reported)]
    assert tokens[0] < tokens[3]
    assert tokens[1:3] == [None, None]


@pytest.mark.slow
def test_a_worker_reports_assignments_and_revokes_in_order(sidecars: Sidecars) -> None:
    topic = sidecars.group
    put = sidecars.processes.rota("topics", "put", topic, "-p", "4", env={"ROTA_URL": sidecars.server_url})
    assert put.wait_for_exit() == 0
    work = ("--work", sidecars.group, "--topic", topic)
    first = sidecars.start(*work, name="pod-0")
    first.get("/wait?for=assigned&timeout=20")
    assert first.get("/assignments").json()["assignment"] == [{"topic": topic, "partitions": [0, 1, 2, 3]}]

    second = sidecars.start(*work, name="pod-1")
    second.get("/wait?for=assigned&timeout=20")

    shares = [one.get("/assignments").json()["assignment"] for one in (first, second)]
    assert sorted(number for share in shares for number in share[0]["partitions"]) == [0, 1, 2, 3]
    assert first.process.terminate() == 0
    second.until(lambda status: status["assignment"] == [{"topic": topic, "partitions": [0, 1, 2, 3]}], "all of it")


@pytest.mark.slow
def test_sidecars_share_connectors_and_tasks_as_workers(sidecars: Sidecars, tmp_path: Path) -> None:
    connector, read = sidecars.group, tmp_path / "read"
    put = sidecars.processes.rota("topics", "put", connector, "-p", "3", env={"ROTA_URL": sidecars.server_url})
    assert put.wait_for_exit() == 0
    read.write_text("41")
    work = ("--work", sidecars.group, "--connector", connector)
    first = sidecars.start(*work, "--config-offset-file", read, name="pod-0")
    alone = first.until(lambda status: status["state"] == "assigned", "assigned")
    assert (alone["assignment"], alone["config_offset"]) == ([{"topic": connector, "partitions": [-1, 0, 1, 2]}], 41)

    second = sidecars.start(*work, name="pod-1")
    moved = second.until(lambda status: bool(status["assignment"]), "a share")["assignment"][0]["partitions"]

    kept = first.status()["assignment"][0]["partitions"]
    assert sorted(kept + moved) == [-1, 0, 1, 2]
    assert second.status()["config_offset"] == 41
    # The work of a worker that has gone waits for its return.
    assert second.process.terminate() == 0
    assert first.status()["assignment"][0]["partitions"] == kept
    again = sidecars.start(*work, name="pod-1")
    back = again.until(lambda status: bool(status["assignment"]), "its own work again")["assignment"]
    assert back[0]["partitions"] == moved


@pytest.mark.slow
def test_the_next_start_of_a_pod_takes_its_place(sidecars: Sidecars) -> None:
    first = sidecars.start(name="pod-0")
    first.get("/wait?for=leader&timeout=20")
    before = first.status()
    first.process.send(signal.SIGKILL)
    first.process.wait_for_exit()

    second = sidecars.start(name="pod-0")
    assert second.get("/wait?for=leader&timeout=20").status_code == 200

    after = second.status()
    assert after["name"] == before["name"] == f"{sidecars.group}-pod-0"
    assert after["fencing_token"] > before["fencing_token"]


@pytest.mark.thorough
def test_a_sidecar_without_a_server_says_why_it_is_not_ready(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    sidecar = Sidecars(processes, server.url, "billing", tmp_path).start()
    sidecar.process.wait_for_line(r"^rota: group billing: not served for \d+ s, retrying: .*[Cc]onnection refused")

    not_ready = httpx.get(f"{sidecar.probes}/readyz", trust_env=False)
    assert (not_ready.status_code, "onnection refused" in not_ready.text) == (503, True)
    assert "onnection refused" in sidecar.status()["trouble"]
    server.start()

    assert sidecar.get("/wait?for=leader&timeout=30").json()["trouble"] == ""
    sidecar.process.wait_for_line("served again after")
    assert httpx.get(f"{sidecar.probes}/readyz", trust_env=False).text == "ok\n"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize(("options", "tokens"), [((), 0), (("--pass-env", "ROTA_TOKEN"), 1)])
def test_a_hooks_command_cannot_read_the_sidecar(options: tuple[str, ...], tokens: int, sidecars: Sidecars) -> None:
    """Its program is of the sidecar's user, and gets the token only if it is asked for."""
    script = sidecars.folder / "spy.py"
    script.write_text(SPY % 1)

    sidecar = sidecars.start(
        *("--exec", f"{sys.executable} {script}", *options), env={"ROTA_TOKEN": "TOKEN"}, prefix=WITHOUT_CAPABILITIES
    )

    line = sidecar.process.wait_for_line(r"^\{.*\}$")[0]
    assert json.loads(line) == {"seen": [], "own": tokens}
