"""`rota lead`: a command runs while it leads, with what it needs to know, and ends as it would have ended alone."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from rota.credentials import SECRET_VARIABLES
from rota.protocol.fencing_token import fencing_token
from tests.exec.wrappers import (
    PRINT_ENVIRONMENT,
    SESSION_MS,
    STUBBORN,
    Wrappers,
    environment_of,
    guardian_of,
    pid_of,
    wait_until_dead,
)
from tests.support.reaper import is_alive
from tests.support.spies import SPY, WITHOUT_CAPABILITIES

pytestmark = pytest.mark.processes

# What waits looks up every now and then: a signal that comes just before a long wait would be heeded after it.
# Each line in one write: the next signal may arrive between two of them.
PRINTS_SIGNALS = """
import os, signal, time
def report(number, frame):
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())
    if number == signal.SIGTERM:
        os._exit(42)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH, signal.SIGTSTP, signal.SIGRTMIN):
    signal.signal(number, report)
os.write(1, b"ready\\n")
while True:
    time.sleep(0.05)
"""

# Ends at USR1. Its grandchild, which has left the session and the process group, does not receive that.
LEAVES_A_GRANDCHILD = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(5))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, {at_term})
        print("grandchild", os.getpid(), flush=True)
    else:
        os._exit(0)
while True:
    time.sleep(0.05)
"""


@pytest.mark.thorough
def test_it_ends_with_the_exit_code_of_its_command(wrappers: Wrappers) -> None:
    missing, folder = str(wrappers.folder / "missing"), str(wrappers.folder)
    commands = (["sh", "-c", "exit 7"], ["sh", "-c", "kill -9 $$"], [missing], [folder])

    leads = [wrappers.of(str(number)).lead(*command) for number, command in enumerate(commands)]

    assert [lead.wait_for_exit() for lead in leads] == [7, 128 + signal.SIGKILL, 127, 126]


@pytest.mark.slow
def test_the_command_knows_its_token_and_the_next_is_higher(wrappers: Wrappers) -> None:
    first, second = (wrappers.lead_python(PRINT_ENVIRONMENT) for _ in range(2))

    tokens = sorted(int(environment_of(lead)["ROTA_FENCING_TOKEN"]) for lead in (first, second))

    reported = environment_of(first)
    assert tokens[0] < tokens[1]
    assert (reported["ROTA_GROUP"], reported["ROTA_URL"], reported["ROTA_NAMESPACE"]) == (
        wrappers.group_id,
        wrappers.url,
        "default",
    )
    assert reported["ROTA_MEMBER_ID"]


@pytest.mark.thorough
def test_the_pipe_reports_rising_tokens_and_ends_with_the_term(wrappers: Wrappers) -> None:
    lead = wrappers.lead_python(
        """
        import os, signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with os.fdopen(int(os.environ["ROTA_LOST_FD"])) as pipe:
            for line in pipe:
                print(line, end="", flush=True)
        print("the pipe has ended", flush=True)
        """
    )
    first = json.loads(lead.wait_for_line(r"^\{.*\}$")[0])
    command = guardian_of(lead).children()[0].pid

    wrappers.lead("true")
    lead.wait_for_line(rf'^{{.*"fencing_token":{first["fencing_token"] + fencing_token(1)}.*}}$')
    lead.send(signal.SIGKILL)

    assert lead.wait_for_exit() == -signal.SIGKILL
    wait_until_dead(command)
    assert "the pipe has ended" in lead.output()


@pytest.fixture
def hangups_heeded() -> Iterator[None]:
    """Also where these tests run under nohup: an ignored signal stays ignored by all processes that they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups_heeded")
def test_every_signal_reaches_the_command_and_sets_the_exit_code(wrappers: Wrappers) -> None:
    lead = wrappers.lead_python(PRINTS_SIGNALS)
    lead.wait_for_line("^ready")

    for name in ("SIGHUP", "SIGUSR1", "SIGWINCH", "SIGTSTP"):
        lead.send(signal.Signals[name])
        lead.wait_for_line(f"^got {name}")
    os.kill(lead.pid, signal.SIGRTMIN)
    lead.wait_for_line("^got SIGRTMIN")
    exit_code = lead.terminate()

    assert exit_code == 42


def test_a_signal_reaches_the_whole_process_group(wrappers: Wrappers) -> None:
    inner = "trap 'echo inner; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    lead = wrappers.lead("sh", "-c", 'trap : USR1; sh -c "$0"; echo outer', inner)
    lead.wait_for_line("^ready")

    lead.send(signal.SIGUSR1)

    assert lead.wait_for_exit() == 0
    assert "inner\nouter\n" in lead.output()


@pytest.mark.thorough
def test_candidates_wait_and_lead_when_the_command_has_ended(wrappers: Wrappers) -> None:
    first = wrappers.lead("sleep", "60")
    first.wait_for_line("elected")
    impatient = wrappers.lead("echo", "never", options=("--wait", "3"))
    waiting = wrappers.lead("echo", "never")
    second = wrappers.lead("echo", "second")
    guardian_of(waiting)

    assert waiting.terminate() == 128 + signal.SIGTERM
    assert impatient.wait_for_exit() == 75
    first.terminate()

    assert second.wait_for_exit(SESSION_MS / 2_000) == 0
    assert "never" not in waiting.output() + impatient.output()


@pytest.mark.thorough
def test_the_commands_leftovers_end_before_the_next_leads(wrappers: Wrappers) -> None:
    lead = wrappers.lead_python(LEAVES_A_GRANDCHILD.format(at_term="signal.SIG_IGN"))
    grandchild = pid_of("grandchild", lead)
    waiting = wrappers.lead("true")
    guardian_of(waiting)

    lead.send(signal.SIGUSR1)
    waiting.wait_for_line("elected")

    assert not is_alive(grandchild)
    assert lead.wait_for_exit() == 5


@pytest.mark.parametrize("victim", ["wrapper", "guardian"])
def test_nothing_survives_a_kill_9(wrappers: Wrappers, victim: str) -> None:
    lead = wrappers.lead_python(STUBBORN)
    pids = [pid_of(who, lead) for who in ("child", "grandchild")]
    guardian = guardian_of(lead)

    if victim == "wrapper":
        lead.send(signal.SIGKILL)
    else:
        guardian.kill()

    wait_until_dead(*pids, deadline_s=SESSION_MS / 2_000)
    assert lead.wait_for_exit() == (-signal.SIGKILL if victim == "wrapper" else 70)
    wait_until_dead(guardian.pid)


@pytest.mark.slow
def test_a_lost_leadership_ends_with_74_or_campaigns_again(wrappers: Wrappers) -> None:
    wrappers = wrappers.soon_lost()
    once = wrappers.lead_python(STUBBORN)
    pids = [pid_of(who, once) for who in ("child", "grandchild")]
    once.pause()
    wait_until_dead(*pids)
    again = wrappers.lead_python(STUBBORN, "--again")
    again.wait_for_line("elected")
    once.resume()
    assert once.wait_for_exit() == 74
    first_child = pid_of("child", again)

    again.pause()
    wait_until_dead(first_child)
    again.resume()

    again.wait_until(lambda: again.output().count("elected") == 2, "second term")


@pytest.mark.slow
def test_a_signal_before_the_program_starts_is_not_lost(wrappers: Wrappers) -> None:
    """The command ignores nothing, so that whenever it comes, TERM ends it."""
    leads = [wrappers.of(str(number)).lead("sleep", "60") for number in range(4)]
    for lead in leads:
        lead.wait_for_line("elected")
        lead.send(signal.SIGTERM)

    assert [lead.wait_for_exit() for lead in leads] == [128 + signal.SIGTERM] * 4


def test_a_command_gets_no_secret_of_ours_unless_it_is_asked_for(wrappers: Wrappers) -> None:
    ours = {name: f"{name}-value" for name in SECRET_VARIABLES}

    wrapper = wrappers.lead_with({**ours, "THEIRS": "yes"}, PRINT_ENVIRONMENT, "--pass-env", "ROTA_REDIS")
    reported = environment_of(wrapper)

    assert ours.keys() & reported.keys() == {"ROTA_REDIS"}
    assert (reported["THEIRS"], reported["ROTA_URL"]) == ("yes", wrappers.url)
    assert int(reported["ROTA_FENCING_TOKEN"]) > 0


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("kind", ["lead", "hold", "work"])
def test_a_command_cannot_read_the_processes_above_it(kind: str, wrappers: Wrappers) -> None:
    """Guardian and wrapper, both of its own user; the wrapper was started with the token."""
    wrappers.put_topic("secrets", 1)
    options = {"lead": (), "hold": ("--permits", "1"), "work": ("--topic", "secrets")}[kind]

    wrapper = wrappers.lead_with({"ROTA_TOKEN": "TOKEN"}, SPY % 2, *options, kind=kind, prefix=WITHOUT_CAPABILITIES)

    assert environment_of(wrapper) == {"seen": [], "own": 0}
