"""`rota doctor`: checks of a server and its groups. A failed check reports the finding and the next step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from rota.cli.exits import CommandFailed
from rota.cli.options import OutputFormat, at_server
from rota.cli.output import Output, print_items
from rota.protocol.troubles import harm
from rota.protocol.wording import NAMED, count, duration

if TYPE_CHECKING:
    from rota.cli.calls import Server

_OK = 200
_SKEW_S = 5.0
_SLOW_S = 0.25
_TRIES = 3
WINDOW_S = 2.0
"""The window in which counters count as current."""
_LAG_S = 0.1
_WEEK_S = 7 * 86_400
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Checked:
    check: str
    ok: bool
    found: str


class Unwell(Exception):
    """A check has failed; the message says why, and what to do."""


@at_server
def doctor(server: Server, output: OutputFormat = Output.TABLE) -> None:
    """Check the health of a server: readiness, store, Redis, shards, clock, certificates and groups.

    Ends with 1 if a check fails. Runbooks: docs/runbooks.
    """
    checks = list(examine(server))
    print_items([asdict(each) for each in checks], output, columns=("check", "ok", "found"), name="check")
    if bad := [each.check for each in checks if not each.ok]:
        raise CommandFailed(f"failed checks: {', '.join(bad)}")


def examine(server: Server) -> Iterator[Checked]:
    """Run all checks in order; a failed one stops the others only if the server does not answer at all.

    Counters are read twice, because a past fault keeps its count until the process ends, and is no finding.
    """
    reached = _try("server", lambda: _reached(server))
    yield reached
    if not reached.ok:
        return
    yield _try("ready", lambda: _ready(server))
    yield _try("clock", lambda: _clock(server))
    before = _metrics(server)
    if before is not None:
        time.sleep(WINDOW_S)
    now = before and _metrics(server)
    if before is not None and now is not None:
        metrics = _Metrics(now.text, before)
        yield _try("release", lambda: metrics.label("rota_build_info", "version"))
        yield _try("store", lambda: _store(metrics))
        yield _try("redis", lambda: _redis(metrics))
        yield _try("shards", lambda: _shards(metrics))
        yield _try("event loop", lambda: _event_loop(metrics))
        yield _try("certificates", lambda: _certificates(metrics, time.time()))
    yield _try("groups", lambda: _groups(server))


def _try(name: str, check: Callable[[], str]) -> Checked:
    try:
        return Checked(name, True, check())
    except (Unwell, CommandFailed) as bad:
        return Checked(name, False, str(bad))


def _reached(server: Server) -> str:
    """Measure the fastest of a few answers: the first one opens the connection, and any may meet a busy machine."""
    took_s = min(_seconds_to_answer(server) for _ in range(_TRIES))
    if took_s > _SLOW_S:
        raise Unwell(f"it took {duration(round(took_s * 1_000))} to answer /healthz: is the machine overloaded?")
    return f"{server.url} answers within {duration(round(took_s * 1_000))}"


def _seconds_to_answer(server: Server) -> float:
    began_s = time.monotonic()
    answer = server.get("/healthz")
    if answer.status_code != _OK:
        raise Unwell(f"{server.url}/healthz answers {answer.status_code}: is that a Rota server at the right address?")
    return time.monotonic() - began_s


def _ready(server: Server) -> str:
    answer = server.get("/readyz")
    if answer.status_code != _OK:
        raise Unwell(f"{answer.json().get('detail', 'not ready')}; see docs/runbooks/RotaReplicaNotReady.md")
    return "yes"


def _clock(server: Server) -> str:
    """Compare clocks to the second, as HTTP allows: members' deadlines do not depend on it, but printed times do."""
    date = server.get("/healthz").headers.get("date")
    if date is None:
        return "unknown: the server sends no Date header"
    ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
    if abs(ahead_s) > _SKEW_S:
        which = "ahead of" if ahead_s > 0 else "behind"
        raise Unwell(
            f"{duration(round(abs(ahead_s) * 1_000))} {which} this machine's clock: times below are wrong by that"
        )
    return "in sync with this machine"


@dataclass(frozen=True, slots=True)
class _Metrics:
    text: str
    before: _Metrics | None = None
    """The metrics at the start of the window."""

    def samples(self, name: str) -> list[tuple[str, float]]:
        return [(labels or "", float(value)) for found, labels, value in _SAMPLE.findall(self.text) if found == name]

    def total(self, name: str) -> float:
        return sum(value for _, value in self.samples(name))

    def grown(self, name: str) -> float:
        """Return the increase of a counter within the window; its value if the process has started within it."""
        now, before = self.total(name), self.before.total(name) if self.before else 0.0
        return now - before if now >= before else now

    def observed(self, name: str) -> tuple[float, float]:
        """Return the number and the mean of a histogram's observations within the window."""
        times = self.grown(f"{name}_count")
        return times, self.grown(f"{name}_sum") / times if times else 0.0

    def label(self, name: str, label: str) -> str:
        found = [re.search(rf'{label}="([^"]*)"', labels) for labels, _ in self.samples(name)]
        return next((match[1] for match in found if match), "unknown")


def _metrics(server: Server) -> _Metrics | None:
    """Read the metrics; None if the caller may not read them."""
    answer = server.get("/metrics")
    return _Metrics(answer.text) if answer.status_code == _OK else None


def _store(metrics: _Metrics) -> str:
    failing, failed = metrics.grown("rota_store_failures_total"), metrics.total("rota_store_failures_total")
    commits, mean_s = metrics.observed("rota_commit_duration_seconds")
    if failing:
        raise Unwell(f"{failing:.0f} calls failed within {WINDOW_S:.0f} s; see docs/runbooks/RotaStoreFailing.md")
    if mean_s > _SLOW_S:
        raise Unwell(f"a commit takes {duration(round(mean_s * 1_000))}; see docs/runbooks/RotaCommitsSlow.md")
    now = f"{commits:.0f} commits of {mean_s * 1_000:.1f} ms on average" if commits else "no commit"
    return f"{now} within {WINDOW_S:.0f} s, no failed call; {failed:.0f} failed calls since the start"


def _redis(metrics: _Metrics) -> str:
    up = metrics.samples("rota_liveness_up")
    if not up:
        return "not configured"
    if not all(value for _, value in up):
        raise Unwell("it does not answer; no member expires because of that; see docs/runbooks/RotaLivenessDown.md")
    return f"answers, and failed {metrics.total('rota_liveness_failures_total'):.0f} times since the start"


def _shards(metrics: _Metrics) -> str:
    owned, due = metrics.total("rota_shards_owned"), metrics.total("rota_shards_due")
    text = f"this replica owns {owned:.0f} of {metrics.total('rota_shards'):.0f}, {due:.0f} are assigned to it"
    if owned < due:
        raise Unwell(f"{text}; see docs/runbooks/RotaShardsUnowned.md")
    return text


def _event_loop(metrics: _Metrics) -> str:
    _, mean_s = metrics.observed("rota_event_loop_lag_seconds")
    if mean_s > _LAG_S:
        raise Unwell(f"{mean_s * 1_000:.0f} ms late on average; see docs/runbooks/RotaEventLoopHeldUp.md")
    return f"{mean_s * 1_000:.1f} ms late on average"


def _certificates(metrics: _Metrics, now_s: float) -> str:
    """Check certificates as the alert does: warn a week before the end, or in the last quarter of a short life."""
    begins = dict(metrics.samples("rota_certificate_not_before_timestamp_seconds"))
    ends = metrics.samples("rota_certificate_not_after_timestamp_seconds")
    text = "; ".join(f"the one for {label.split('=')[1]} {_left(end_s - now_s)}" for label, end_s in ends)
    if any(end_s - now_s < min(_WEEK_S, (end_s - begins[label]) / 4) for label, end_s in ends):
        raise Unwell(f"{text}; see docs/runbooks/RotaCertificateEnds.md")
    return text or "none: the server has no TLS, or a proxy terminates it"


def _left(seconds: float) -> str:
    return f"expires in {seconds / 86_400:.1f} days" if seconds > 0 else "has expired"


def _groups(server: Server) -> str:
    """Check the groups in trouble, the worst first, each with the next command to type."""
    groups = server.groups(server.namespace)
    troubled = sorted((group for group in groups if group.troubles), key=lambda group: harm(group.troubles))
    if troubled:
        worst = [f"{each.group_id}: {each.troubles[0].text} Type: {each.troubles[0].next_step}" for each in troubled]
        more = f"; and {len(worst) - NAMED} more, see `rota top`" if worst[NAMED:] else ""
        raise Unwell(f"{len(worst)} of {count(len(groups), 'group')} in trouble: {'; '.join(worst[:NAMED])}{more}")
    return f"none of {count(len(groups), 'group')} in namespace {server.namespace} is in trouble"
