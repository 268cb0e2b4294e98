"""Grafana's dashboards as code: `make docs` writes them to the folder that the chart and compose use.

A dashboard is a table of rows of panels, and a panel is a title, a unit and its queries. Grafana's own types
create the JSON and reject unknown fields.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueColorMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

_Built = TypeVar("_Built", timeseries.Panel, stat.Panel)

FOLDER = Path(__file__).parents[2] / "helm" / "rota" / "files" / "dashboards"
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
OF = 'namespace=~"$namespace", job=~"$job"'
"""The selector of the chosen installations."""
WINDOW = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and the legend of its lines. `{of}` becomes the chosen installations, `{w}` the window of rates."""

    expr: str
    legend: str

    @property
    def promql(self) -> str:
        return self.expr.replace("{of}", OF).replace("{w}", WINDOW)


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time. `says` is its description."""

    title: str
    unit: str
    says: str
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """One figure, red from `bad_from` on, or below it if `low_is_bad`."""

    title: str
    unit: str
    says: str
    query: Query
    bad_from: float | None = None
    low_is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard: rows with a title, each with its panels."""

    uid: str
    title: str
    says: str
    rows: tuple[tuple[str, tuple[Panel | Number, ...]], ...]


def quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    """The median and the 99th percentile; separately for each value of the label `by`."""
    labels, suffix = (f"le, {by}", " {{" + by + "}}") if by else ("le", "")
    rate = f"sum by ({labels}) (rate({metric}_bucket" + "{{of}}{w}))"
    return tuple(
        Query(f"histogram_quantile({quantile}, {rate})", name + suffix)
        for quantile, name in ((0.5, "median"), (0.99, "99 %"))
    )


def rate(metric: str, by: str, only: str = "") -> Query:
    """Per second, one line for each value of the label `by`."""
    selector = "{{of}" + (f", {only}" if only else "") + "}"
    return Query(f"sum by ({by}) (rate({metric}{selector}" + "{w}))", "{{" + by + "}}")


OVERVIEW = Board(
    "rota-overview",
    "Rota / Overview",
    "Health of the service and its groups.",
    (
        (
            "The service",
            (
                Number(
                    "Ready replicas",
                    "short",
                    "Replicas that can serve, as /readyz says.",
                    Query("sum(rota_ready{{of}})", ""),
                    bad_from=1,
                    low_is_bad=True,
                ),
                Number(
                    "Shards without an owner",
                    "short",
                    "More than 0 for longer than a lease: their groups get no answers.",
                    Query("max(rota_shards{{of}}) - sum(rota_shards_owned{{of}})", ""),
                    bad_from=1,
                ),
                Number(
                    "Groups in use", "short", "With members.", Query('sum(rota_groups{{of}, state!~"Empty|Dead"})', "")
                ),
                Number("Members", "short", "Sessions that are watched.", Query("sum(rota_members{{of}})", "")),
                Number(
                    "Troubles of groups",
                    "short",
                    "Without a leader, stuck, flapping, or with a silent member: `rota top` names them.",
                    Query("sum(rota_troubles{{of}})", ""),
                    bad_from=1,
                ),
                Number(
                    "Share of failed answers",
                    "percentunit",
                    "Answers with a COORDINATOR_ error: the service could not decide.",
                    Query(
                        'sum(rate(rota_requests_total{{of}, code=~"COORDINATOR_.*"}{w}))'
                        " / sum(rate(rota_requests_total{{of}}{w}))",
                        "",
                    ),
                    bad_from=0.05,
                ),
            ),
        ),
        (
            "Groups",
            (
                Panel(
                    "Groups by state",
                    "short",
                    "Stable groups have a valid assignment.",
                    (Query("sum by (state) (rota_groups{{of}})", "{{state}}"),),
                ),
                Panel(
                    "Changes of groups by cause",
                    "ops",
                    "Causes of rebalances, summed over all groups.",
                    (rate("rota_group_changes_total", "cause"),),
                ),
                Panel(
                    "Duration of rebalances",
                    "s",
                    "Join phase, then sync with the leader's assignment.",
                    quantiles("rota_rebalance_duration_seconds", "phase"),
                ),
            ),
        ),
        (
            "Traffic",
            (
                Panel(
                    "Requests", "reqps", "All requests except heartbeats.", (rate("rota_requests_total", "operation"),)
                ),
                Panel("Heartbeats", "ops", "One per member.", (rate("rota_heartbeats_total", "result"),)),
                Panel(
                    "Parked calls",
                    "short",
                    "Calls that wait for a change, such as long polls.",
                    (
                        Query("sum by (operation) (rota_waiters{{of}})", "{{operation}}"),
                        Query("sum(rota_event_streams{{of}})", "event streams"),
                    ),
                ),
            ),
        ),
    ),
)

GROUPS = Board(
    "rota-groups",
    "Rota / Groups and members",
    "Joining and leaving members, failure detection, and fenced requests.",
    (
        (
            "Membership",
            (
                Panel(
                    "Membership changes",
                    "ops",
                    "Expired: no heartbeat in time. Fenced: replaced by a process with the same static id.",
                    (rate("rota_journal_events_total", "kind", 'kind=~"member_.*"'),),
                ),
                Panel(
                    "Leader changes",
                    "ops",
                    "Each is a new term with a higher fencing token.",
                    (rate("rota_journal_events_total", "kind", 'kind="leader_changed"'),),
                ),
                Panel("Members", "short", "By replica.", (Query("rota_members{{of}}", "{{instance}}"),)),
            ),
        ),
        (
            "Failure detection",
            (
                Panel(
                    "Failure detection latency",
                    "s",
                    "Delay between a member's deadline and its expiry.",
                    quantiles("rota_expiry_lateness_seconds"),
                ),
                Panel(
                    "Timers after a stall",
                    "s",
                    "Delay of timers after a stall; sessions are extended by it.",
                    quantiles("rota_timer_lateness_seconds"),
                ),
                Panel(
                    "Fenced requests",
                    "ops",
                    "Requests of replaced members, once per member, operation and generation.",
                    (rate("rota_journal_events_total", "kind", 'kind="request_fenced"'),),
                ),
            ),
        ),
        (
            "Rebalances",
            (
                Panel(
                    "Troubles by kind",
                    "short",
                    "As `rota top` names them: no leader, a stuck rebalance, partitions without an owner, silence.",
                    (Query("sum by (kind) (rota_troubles{{of}})", "{{kind}}"),),
                ),
                Panel(
                    "Generations and assignments",
                    "ops",
                    "A generation without an assignment has a leader that fails to assign.",
                    (rate("rota_journal_events_total", "kind", 'kind=~"generation_completed|assignment_.*"'),),
                ),
                Panel(
                    "Offset commits",
                    "ops",
                    "Journal events; one event may hold many partitions.",
                    (rate("rota_journal_events_total", "kind", 'kind=~"offsets_.*"'),),
                ),
            ),
        ),
    ),
)

INTERNALS = Board(
    "rota-internals",
    "Rota / Internals",
    "The store, the shards, the peers, Redis and the event loop.",
    (
        (
            "Store",
            (
                Panel(
                    "Commits", "s", "Duration of the journal's transactions.", quantiles("rota_commit_duration_seconds")
                ),
                Panel(
                    "Events per commit",
                    "short",
                    "Large batches: many events wait for a slow store, and group commit combines them.",
                    quantiles("rota_commit_batch_events"),
                ),
                Panel(
                    "Store failures",
                    "ops",
                    "Failed calls to Postgres.",
                    (rate("rota_store_failures_total", "operation"),),
                ),
            ),
        ),
        (
            "Pipeline",
            (
                Panel(
                    "Unread lines",
                    "short",
                    "Lines of the journal that the last batch left unread.",
                    (Query("rota_pipeline_lines_behind{{of}}", "unread"),),
                ),
                Panel(
                    "Last read",
                    "s",
                    "Time since the last look at the journal that succeeded.",
                    (Query("time() - rota_pipeline_last_success_timestamp_seconds{{of}}", "last read"),),
                ),
                Panel(
                    "Busy",
                    "percentunit",
                    "Share of the time that batches take. It should stay well below 100%.",
                    (Query("rate(rota_pipeline_batch_seconds_total{{of}}{w})", "batches"),),
                ),
            ),
        ),
        (
            "Shards and peers",
            (
                Panel(
                    "Shards by replica",
                    "short",
                    "Owned and assigned: they differ while shards move.",
                    (
                        Query("rota_shards_owned{{of}}", "{{instance}} owns"),
                        Query("rota_shards_due{{of}}", "{{instance}} should own"),
                    ),
                ),
                Panel(
                    "Shards dropped and loaded",
                    "ops",
                    "handed_over is a move; broken_invariant is a bug.",
                    (
                        rate("rota_shards_dropped_total", "cause"),
                        Query("sum(rate(rota_shard_load_duration_seconds_count{{of}}{w}))", "loaded"),
                    ),
                ),
                Panel(
                    "Forwarded calls",
                    "reqps",
                    "Calls for another replica's shards, by its answer.",
                    (rate("rota_forwarded_calls_total", "code"),),
                ),
            ),
        ),
        (
            "Redis",
            (
                Panel(
                    "Redis answers", "short", "1 or 0, by replica.", (Query("rota_liveness_up{{of}}", "{{instance}}"),)
                ),
                Panel(
                    "Heartbeat times written",
                    "ops",
                    "Heartbeat times of members that replicas share in Redis.",
                    (rate("rota_liveness_updates_total", "instance"),),
                ),
                Panel(
                    "Redis failures",
                    "ops",
                    "Failed calls to Redis. No member expires because of them.",
                    (rate("rota_liveness_failures_total", "operation"),),
                ),
            ),
        ),
        (
            "Process",
            (
                Panel(
                    "Event loop lag",
                    "s",
                    "Delay of callbacks on the event loop.",
                    quantiles("rota_event_loop_lag_seconds", "instance"),
                ),
                Panel(
                    "CPU",
                    "percentunit",
                    "1 is a whole core, which is the most that a process can use.",
                    (Query("rate(process_cpu_seconds_total{{of}}{w})", "{{instance}}"),),
                ),
                Panel("Memory", "bytes", "Resident.", (Query("process_resident_memory_bytes{{of}}", "{{instance}}"),)),
                Panel(
                    "Releases and draining",
                    "short",
                    "Running releases, and replicas that are draining.",
                    (
                        Query("count by (version) (rota_build_info{{of}})", "{{version}}"),
                        Query("sum(rota_draining{{of}})", "draining"),
                    ),
                ),
                Panel(
                    "Certificates",
                    "s",
                    "Time until the certificates for clients and peers expire.",
                    (Query("rota_certificate_not_after_timestamp_seconds{{of}} - time()", "{{use}}, {{instance}}"),),
                ),
            ),
        ),
    ),
)

BOARDS = (OVERVIEW, GROUPS, INTERNALS)


def build(board: Board) -> str:
    """The dashboard's JSON, the same for the same board."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.says)
        .tags(["rota"])
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_variable("namespace", "label_values(rota_build_info, namespace)"))
        .with_variable(_variable("job", 'label_values(rota_build_info{namespace=~"$namespace"}, job)'))
    )
    for title, panels in board.rows:
        built.with_row(dashboard.Row(title))
        for panel in panels:
            built.with_panel(_panel(panel, span=24 // len(panels)))
    return json.dumps(json.loads(JSONEncoder(sort_keys=True).encode(built.build())), indent=2, sort_keys=True) + "\n"


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _panel(panel: Panel | Number, span: int) -> timeseries.Panel | stat.Panel:
    if isinstance(panel, Panel):
        return _described(timeseries.Panel(), panel, panel.queries, span, height=8).min(0)
    return (
        _described(stat.Panel(), panel, (panel.query,), span, height=4)
        .color_mode(_color(panel))
        .thresholds(_thresholds(panel))
    )


def _described(built: _Built, panel: Panel | Number, queries: Iterable[Query], span: int, height: int) -> _Built:
    built.title(panel.title).description(panel.says).unit(panel.unit).datasource(DATASOURCE).span(span).height(height)
    for number, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.promql).legend_format(query.legend).ref_id(chr(ord("A") + number))
        built.with_target(target)
    return built


def _color(number: Number) -> BigValueColorMode:
    return BigValueColorMode.NONE if number.bad_from is None else BigValueColorMode.BACKGROUND


def _thresholds(number: Number) -> dashboard.ThresholdsConfig:
    first, then = ("red", "green") if number.low_is_bad else ("green", "red")
    steps = [Threshold(value=None, color=first)]
    if number.bad_from is not None:
        steps.append(Threshold(value=number.bad_from, color=then))
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def write(folder: Path = FOLDER) -> None:
    """Write every dashboard, under its uid."""
    folder.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        (folder / f"{board.uid}.json").write_text(build(board), encoding="utf-8")


def out_of_date(folder: Path = FOLDER) -> list[str]:
    """The dashboards that are not what would be written now."""
    files = {f"{board.uid}.json": build(board) for board in BOARDS}
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in files.keys() | found.keys() if files.get(name) != found.get(name))


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if stale := out_of_date():
            sys.exit(f"out of date, run `make docs`: {', '.join(stale)}")
    else:
        write()
