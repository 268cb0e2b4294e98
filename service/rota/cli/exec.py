"""`rota lead`, `rota hold` and `rota work`: a command in any language that runs only while its group permits it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.members import (
    DEFAULT_STRATEGY,
    LONGEST_MS,
    LONGEST_SESSION_MS,
    LONGEST_STOP_MS,
    PREEMPT_AFTER_S,
    ConfigOffset,
    Connector,
    Except,
    NoPreempt,
    PreemptAfter,
    Priority,
    ReturnDelay,
    TopicRegex,
    TopicsDebounce,
    run_member,
    shared_work_of,
)
from rota.cli.options import Namespace, Shared, Url, a_number, shared, usage
from rota.cli.times import milliseconds
from rota.protocol.defaults import RETURN_DELAY_MS, SESSION_TIMEOUT_MS, STOP_DRAIN_MS

if TYPE_CHECKING:
    from rota.agents.exec.lead import LeadOptions
    from rota.agents.exec.stopping import StopTimes

Command = Annotated[
    list[str],
    typer.Argument(
        metavar="-- COMMAND...", help="Command to run, without a shell; use sh -c '…' for one.", show_default=False
    ),
]
SessionTimeout = Annotated[
    int,
    typer.Option(
        "--session-timeout-ms",
        min=1_000,
        max=LONGEST_SESSION_MS,
        envvar="ROTA_SESSION_TIMEOUT_MS",
        help="Time without a heartbeat before others take over.",
    ),
]
Grace = Annotated[
    int | None,
    typer.Option(
        "--grace-ms",
        min=0,
        help="Time from TERM to KILL; at most a quarter of the session timeout; default: a fifth of it, at most 2 s.",
        show_default=False,
    ),
]
Drain = Annotated[
    int,
    typer.Option(
        "--drain-ms",
        min=0,
        max=LONGEST_STOP_MS,
        help="Time from TERM to KILL at a SIGTERM, and when a share changes in order.",
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        min=0,
        max=LONGEST_MS / 1000,
        callback=a_number,
        metavar="SECONDS",
        help="Exit with 75 if nothing is granted within this time; default: wait forever.",
        show_default=False,
    ),
]
InstanceId = Annotated[
    str | None,
    typer.Option(
        "--instance-id",
        envvar="ROTA_GROUP_INSTANCE_ID",
        help="Static name that survives restarts: a static member.",
        show_default=False,
    ),
]
PassedOn = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-env",
        metavar="NAME",
        help="Pass this variable to the command: ROTA_TOKEN, ROTA_STORE, ROTA_REDIS and ROTA_WEBHOOK are withheld.",
        show_default=False,
    ),
]
OncePer = Annotated[
    str | None,
    typer.Option(
        "--once-per",
        metavar="PERIOD",
        help="Run once per occasion of a schedule on several hosts: hourly, daily, weekly or its shortest gap, as 10m.",
        show_default=False,
    ),
]
AtMostOnce = Annotated[
    bool,
    typer.Option(
        "--at-most-once",
        help="With --once-per: an occasion is done when its command starts; default: when it has ended with 0.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


def lead(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The election: a group of the type leader.")],
    command: Command,
    session_timeout_ms: SessionTimeout = SESSION_TIMEOUT_MS,
    grace_ms: Grace = None,
    drain_ms: Drain = STOP_DRAIN_MS,
    wait: Wait = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Campaign again after a loss or a rejected token instead of ending with 74 or 4."),
    ] = False,
    priority: Priority = 0,
    preempt_after: PreemptAfter = PREEMPT_AFTER_S,
    no_preempt: NoPreempt = False,
    once_per: OncePer = None,
    at_most_once: AtMostOnce = False,
    instance_id: InstanceId = None,
    pass_env: PassedOn = None,
    quiet: Quiet = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Run a command while this process leads, and never longer.

    Campaigns until elected, runs the command in a separate process group, forwards every signal to it, and ends with
    its exit code. At SIGTERM the command has --drain-ms to end; then it is killed, and the group is left. Before the
    local deadline, which is earlier than the server's, the command and all processes that it has started get TERM and
    then KILL, even if this process is paused or killed with kill -9.

    The command finds ROTA_FENCING_TOKEN, ROTA_MEMBER_ID, ROTA_GROUP, ROTA_NAMESPACE and ROTA_URL in its environment.
    The file descriptor ROTA_LOST_FD is a pipe: it has a line of JSON at the start and for each change, and ends when
    leadership ends.
    """
    from rota.agents.exec.lead import LeadOptions

    chosen = LeadOptions(
        command,
        _times(session_timeout_ms, grace_ms),
        session_timeout_ms / 1000,
        wait,
        again,
        instance_id,
        priority=priority,
        preempt_after=None if no_preempt else preempt_after,
        drain_timeout=drain_ms / 1000,
        once_per=_period(once_per, at_most_once),
        at_most_once=at_most_once,
    )
    _campaign(shared(context, url, namespace), name, chosen, pass_env, quiet=quiet)


def hold(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lock: a group of the type permits.")],
    command: Command,
    permits: Annotated[
        int,
        typer.Option(
            "--permits",
            "-n",
            min=1,
            max=1_000_000,
            help="Number of permits, which is the maximum number of holders; 1 is a lock.",
        ),
    ] = 1,
    session_timeout_ms: SessionTimeout = SESSION_TIMEOUT_MS,
    grace_ms: Grace = None,
    drain_ms: Drain = STOP_DRAIN_MS,
    wait: Wait = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Wait for a permit again after a loss or a rejected token instead of ending with 74 or 4."
        ),
    ] = False,
    instance_id: InstanceId = None,
    pass_env: PassedOn = None,
    quiet: Quiet = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Run a command while this process holds a lock, or one of several permits, and never longer.

    Exit codes, signals and deadlines are those of `rota lead`. Waiting members get permits in the order of their joins.
    A permit and its token do not change when others join or leave. If members name different numbers of permits, the
    lowest counts.

    The command also finds ROTA_PERMIT, the number of its permit from 0 on, and in ROTA_FENCING_TOKEN its token, which
    is greater than all earlier tokens of this permit.
    """
    from rota.agents.exec.lead import LeadOptions

    chosen = LeadOptions(
        command,
        _times(session_timeout_ms, grace_ms),
        session_timeout_ms / 1000,
        wait,
        again,
        instance_id,
        permits=permits,
        drain_timeout=drain_ms / 1000,
    )
    _campaign(shared(context, url, namespace), name, chosen, pass_env, quiet=quiet)


def _campaign(address: Shared, name: str, options: LeadOptions, pass_env: list[str] | None, *, quiet: bool) -> NoReturn:
    """Run the command of `rota lead` or `rota hold`, and end with its exit code."""
    from rota.agents.exec.lead import lead as run_lead

    running = partial(run_lead, name=name, options=options)
    instance_id, again = options.group_instance_id, options.again
    done = run_member(address, name, running, pass_env, instance_id=instance_id, quiet=quiet, retry_refusals=again)
    raise typer.Exit(done)


def work(
    context: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group that shares the work.")],
    command: Command,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Topic whose partitions to share; repeat for several.")
    ] = None,
    topic_regex: TopicRegex = None,
    topics_except: Except = None,
    topics_debounce_ms: TopicsDebounce = 0,
    connector: Connector = None,
    config_offset_file: ConfigOffset = None,
    scheduled_rebalance_max_delay_ms: ReturnDelay = RETURN_DELAY_MS,
    strategy: Annotated[str, typer.Option(help="Assignment strategy; the same for all members.")] = DEFAULT_STRATEGY,
    session_timeout_ms: SessionTimeout = SESSION_TIMEOUT_MS,
    grace_ms: Grace = None,
    drain_ms: Drain = STOP_DRAIN_MS,
    wait: Wait = None,
    instance_id: InstanceId = None,
    pass_env: PassedOn = None,
    quiet: Quiet = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Run a command on this process's share of a group's work, again whenever the share changes.

    Works as `rota lead`. ROTA_ASSIGNMENT has the share as JSON; with one topic ROTA_PARTITIONS has the numbers of its
    partitions, separated by spaces. When the share changes, the command gets TERM and has --drain-ms to finish; then it
    is started on the new share. Other members get partitions only after it has finished. Without a share, no command
    runs.

    With --connector the group is of the type worker, as Kafka Connect's: one command runs for each connector and task
    of the share, with ROTA_CONNECTOR, ROTA_TASK (-1 for the connector itself) and ROTA_CONFIG_OFFSET, and continues
    while others start and stop. When a command ends by itself, the others get TERM, and this process ends with its exit
    code.
    """
    to_share = shared_work_of(
        topic,
        topic_regex,
        connector,
        strategy,
        topics_debounce_ms,
        config_offset_file,
        topics_except,
        scheduled_rebalance_max_delay_ms,
    )
    from rota.agents.exec.work import WorkOptions
    from rota.agents.exec.work import work as run_work

    times = _times(session_timeout_ms, grace_ms)
    chosen = WorkOptions(command, times, to_share, session_timeout_ms / 1000, drain_ms / 1000, wait, instance_id)
    running = partial(run_work, group_id=group, options=chosen)
    address = shared(context, url, namespace)
    raise typer.Exit(run_member(address, group, running, pass_env, instance_id=instance_id, quiet=quiet))


def _times(session_timeout_ms: int, grace_ms: int | None) -> StopTimes:
    from rota.agents.exec.stopping import StopTimes

    with usage():
        return StopTimes.for_session(session_timeout_ms, grace_ms)


_PERIODS = {"hourly": "1h", "daily": "1d", "weekly": "7d"}


def _period(once_per: str | None, at_most_once: bool) -> float | None:
    """Return the period of `--once-per`; raise a usage error if it is invalid or missing."""
    if once_per is None:
        if at_most_once:
            raise CommandFailed("--at-most-once requires --once-per", Exit.USAGE)
        return None
    return milliseconds(_PERIODS.get(once_per, once_per)) / 1000
