"""Default times of the SDK, the command line, the sidecar and the adapters, each with its reason. Milliseconds.

Every program of ours takes its defaults from here, so that one member does not wait for longer than another.
`docs/reference/defaults.md` is generated from `DEFAULTS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# --- membership ------------------------------------------------------------------------------

SESSION_TIMEOUT_MS: Final = 15_000
SERVER_SESSION_TIMEOUT_MS: Final = 45_000
DEMO_SESSION_TIMEOUT_MS: Final = 2_000
REBALANCE_TIMEOUT_MS: Final = 60_000
CONSUMER_REBALANCE_TIMEOUT_MS: Final = 300_000
COMMAND_REBALANCE_TIMEOUT_MS: Final = 10_000
HEARTBEAT_INTERVAL_MS: Final = 3_000
LEASE_MS: Final = 3_000
RETURN_DELAY_MS: Final = 300_000
PREEMPT_AFTER_MS: Final = 30_000
DRAIN_GRANT_MS: Final = 300_000
QUARANTINE_WINDOW_MS: Final = 3_600_000
TOPICS_REFRESH_MS: Final = 10_000
TOPICS_WAIT_MS: Final = 20_000
STREAM_SILENCE_MS: Final = 45_000
AUTO_COMMIT_MS: Final = 5_000

# --- stopping --------------------------------------------------------------------------------

STOP_DRAIN_MS: Final = 5_000
STOP_REST_MS: Final = 2_500
REVOKE_DRAIN_MS: Final = 0
COMMAND_GRACE_MS: Final = 2_000
COMMAND_MARGIN_MS: Final = 1_000
COMMIT_FLUSH_TIMEOUT_MS: Final = 2_000
HOOKS_TIMEOUT_MS: Final = 5_000

# --- calls and retries -----------------------------------------------------------------------

REQUEST_TIMEOUT_MS: Final = 5_000
HEARTBEAT_THREAD_TIMEOUT_MS: Final = 1_000
CONNECT_TIMEOUT_MS: Final = 1_500
RETRY_TIMEOUT_MS: Final = 10_000
COMMAND_LINE_TIMEOUT_MS: Final = 10_000
COMPLETION_TIMEOUT_MS: Final = 2_000
BACKOFF_FIRST_MS: Final = 100
BACKOFF_CAP_MS: Final = 5_000
HEARTBEAT_BACKOFF_CAP_MS: Final = 1_000
CALL_BACKOFF_FIRST_MS: Final = 50
CALL_BACKOFF_CAP_MS: Final = 2_000
LONGEST_RETRY_AFTER_MS: Final = 30_000
WORK_RETRY_FIRST_MS: Final = 1_000
WORK_RETRY_CAP_MS: Final = 30_000
CANDIDACY_RETRY_CAP_MS: Final = 60_000
HOOK_RETRY_CAP_MS: Final = 10_000
RECONNECT_TIMEOUT_MS: Final = 30_000

# --- waiting for a state ---------------------------------------------------------------------

SETTLE_TIMEOUT_MS: Final = 30_000
SIDECAR_WAIT_MS: Final = 30_000
SIDECAR_PAUSE_MS: Final = 1_000
STORE_WAIT_MS: Final = 300_000

# --- warnings --------------------------------------------------------------------------------

WARN_AFTER_MS: Final = 1_000
WARN_AGAIN_MS: Final = 60_000
REMIND_MS: Final = 10_000
LOOP_BLOCKED_MS: Final = 500


@dataclass(frozen=True, slots=True)
class Default:
    """One default: the name of its constant, its value, where it applies, and why it is this value."""

    name: str
    value_ms: int
    used_by: str
    reason: str


DEFAULTS: Final = (
    Default(
        "SESSION_TIMEOUT_MS",
        SESSION_TIMEOUT_MS,
        "`session_timeout` of every member of the SDK; `rota lead`, `rota work`, `rota sidecar`; the adapters",
        "How long work stands still after a crash. Holders survive a replica's crash, a restart, and a network that "
        "is silent for 6 s; [the sums](../explanation/failures.md#the-sums) say for how long each of them does.",
    ),
    Default(
        "SERVER_SESSION_TIMEOUT_MS",
        SERVER_SESSION_TIMEOUT_MS,
        "the server, where a join over HTTP or gRPC names no `session_timeout_ms`",
        "Kafka's default. A client without our SDK schedules its own heartbeats, often from a script.",
    ),
    Default(
        "DEMO_SESSION_TIMEOUT_MS",
        DEMO_SESSION_TIMEOUT_MS,
        "`rota demo`",
        "The person at the terminal watches a killed worker being replaced.",
    ),
    Default(
        "REBALANCE_TIMEOUT_MS",
        REBALANCE_TIMEOUT_MS,
        "`rebalance_timeout` of elections, Connect workers and plain members; `release_timeout` of the set "
        "partitioner; a join that names none",
        "Kafka Connect's default: the longest that one member's `on_revoked` delays the others.",
    ),
    Default(
        "CONSUMER_REBALANCE_TIMEOUT_MS",
        CONSUMER_REBALANCE_TIMEOUT_MS,
        "`rebalance_timeout` of consumers and worker pools; a join of the type `consumer` that names none",
        "Kafka's `max.poll.interval.ms`: a consumer may have to finish a long record before it gives up a partition.",
    ),
    Default(
        "COMMAND_REBALANCE_TIMEOUT_MS",
        COMMAND_REBALANCE_TIMEOUT_MS,
        "`rota lead` and `rota sidecar --lead`, or the session where that is longer",
        "Their command or hooks stop within the session, so the other candidates need not wait for longer.",
    ),
    Default(
        "HEARTBEAT_INTERVAL_MS",
        HEARTBEAT_INTERVAL_MS,
        "heartbeats that the coordinator does not park; at most a fifth of the session, as those that it parks",
        "Kafka's default. With a fifth of the session, two heartbeats may be lost before the session expires.",
    ),
    Default(
        "LEASE_MS",
        LEASE_MS,
        "`--lease-ms` of `rota serve`",
        "How long a replica's crash leaves its groups without an owner; a new process waits as long after its start, "
        "if the former one was killed. A replica that pauses for longer loses its shards, and no member anything.",
    ),
    Default(
        "RETURN_DELAY_MS",
        RETURN_DELAY_MS,
        "`scheduled_rebalance_max_delay` of Connect workers",
        "Kafka Connect's default: a worker that restarts within it gets its own tasks back.",
    ),
    Default(
        "PREEMPT_AFTER_MS",
        PREEMPT_AFTER_MS,
        "`preempt_after` of candidates; candidates without one in their metadata",
        "A candidate that restarts again and again does not take the leadership each time. Two sessions.",
    ),
    Default(
        "DRAIN_GRANT_MS",
        DRAIN_GRANT_MS,
        "a permission to leave, `rota groups drain`",
        "An evictor that has died blocks the others no longer. Most machines stop their processes within it.",
    ),
    Default(
        "QUARANTINE_WINDOW_MS",
        QUARANTINE_WINDOW_MS,
        "the longest time between two falls in a row, of holders of one unit",
        "Long enough for restarts that back off; holders that fall for other reasons do not add up over weeks.",
    ),
    Default(
        "TOPICS_REFRESH_MS",
        TOPICS_REFRESH_MS,
        "`topics_refresh_interval` of consumers, `refresh_interval` of Connect workers, `rota work`, `rota sidecar`",
        "Where the coordinator cannot publish changes of topics: one small call of the leader each time. Elsewhere the "
        "leader compares after three of these, for static members that restart with other topics.",
    ),
    Default(
        "TOPICS_WAIT_MS",
        TOPICS_WAIT_MS,
        "the parked call that waits for changes of topics",
        "Shorter than the 30 s after which many proxies cut a silent connection.",
    ),
    Default(
        "STREAM_SILENCE_MS",
        STREAM_SILENCE_MS,
        "a stream of events, of the SDK and of `rota groups watch`, that is opened anew when it is silent",
        "The server pings a stream every 15 s: one that is silent for three pings is dead.",
    ),
    Default(
        "AUTO_COMMIT_MS",
        AUTO_COMMIT_MS,
        "`auto_commit_interval` of consumers and worker pools",
        "As Kafka's consumers: a process that is killed repeats the work of five seconds at most.",
    ),
    Default(
        "STOP_DRAIN_MS",
        STOP_DRAIN_MS,
        "`drain_timeout` of `run()`, `close()` and the end of an `async with` block; `--drain-ms` of `rota lead`, "
        "`rota hold` and `rota work`",
        "With the rest, a stop takes 7.5 s at most. Docker kills 10 s after SIGTERM, Kubernetes after 30 s.",
    ),
    Default(
        "STOP_REST_MS",
        STOP_REST_MS,
        "the rest of a stop, after the drain: cancelled work cleans up, progress is committed and the group is left",
        "A commit and a LeaveGroup take milliseconds; a coordinator that is silent must not hold up the stop.",
    ),
    Default(
        "REVOKE_DRAIN_MS",
        REVOKE_DRAIN_MS,
        "`drain_timeout` of a worker pool at a rebalance",
        "The work is cancelled at once, so the next member starts at once. Set it where work must finish a step first.",
    ),
    Default(
        "COMMAND_GRACE_MS",
        COMMAND_GRACE_MS,
        "`--grace-ms` of `rota lead`, `rota hold` and `rota work`; at most a fifth of the session",
        "From TERM to KILL. It ends before the deadline, so a longer one shortens the outages that a command survives.",
    ),
    Default(
        "COMMAND_MARGIN_MS",
        COMMAND_MARGIN_MS,
        "how long before its deadline such a command is killed; at most a tenth of the session",
        "A busy machine takes a moment to end all processes of a command.",
    ),
    Default(
        "HOOKS_TIMEOUT_MS",
        HOOKS_TIMEOUT_MS,
        "`--revoke-timeout-ms` of `rota sidecar`; one delivery to its webhook",
        "How long hooks may delay an orderly hand-over; short enough to end within Docker's 10 s.",
    ),
    Default(
        "REQUEST_TIMEOUT_MS",
        REQUEST_TIMEOUT_MS,
        "one attempt of any call, beyond the time that it is parked",
        "A durable write takes milliseconds; a replica that takes over a shard answers within seconds.",
    ),
    Default(
        "HEARTBEAT_THREAD_TIMEOUT_MS",
        HEARTBEAT_THREAD_TIMEOUT_MS,
        "one heartbeat of `heartbeat_thread`, sent where the event loop is blocked",
        "Half of the session has passed by then, so that another try must still fit into the rest.",
    ),
    Default(
        "CONNECT_TIMEOUT_MS",
        CONNECT_TIMEOUT_MS,
        "one TCP and TLS connection of the SDK",
        "Leaves time in the attempt for another address; a lost SYN packet is sent again after 1 s.",
    ),
    Default(
        "RETRY_TIMEOUT_MS",
        RETRY_TIMEOUT_MS,
        "`retry_timeout` of `connect()`: calls that are not a member's (topics, offsets, descriptions)",
        "Covers the restart of a replica and the takeover of its shards. A member retries for as long as it lives.",
    ),
    Default(
        "COMMAND_LINE_TIMEOUT_MS",
        COMMAND_LINE_TIMEOUT_MS,
        "one call of the commands, such as `rota groups list`, which do not retry",
        "Long enough for a full list from a busy store, short enough for a person at a terminal.",
    ),
    Default(
        "COMPLETION_TIMEOUT_MS",
        COMPLETION_TIMEOUT_MS,
        "the call with which a shell completes the name of a group or topic",
        "A shell that completes shows nothing meanwhile; without an answer the name is typed.",
    ),
    Default(
        "BACKOFF_FIRST_MS",
        BACKOFF_FIRST_MS,
        "a member's first retry; each further failure doubles it, with full jitter",
        "Kafka's `retry.backoff.ms`.",
    ),
    Default(
        "BACKOFF_CAP_MS",
        BACKOFF_CAP_MS,
        "a member's longest wait between retries",
        "A thousand members that wait for a server make 400 calls a second at most.",
    ),
    Default(
        "HEARTBEAT_BACKOFF_CAP_MS",
        HEARTBEAT_BACKOFF_CAP_MS,
        "the same while a member holds something; at most a tenth of the session",
        "A member that was cut off renews its session within 1.5 s after the path is back.",
    ),
    Default(
        "CALL_BACKOFF_FIRST_MS",
        CALL_BACKOFF_FIRST_MS,
        "the first retry of a call that is not a member's",
        "A program waits for the result, and there are few such calls.",
    ),
    Default(
        "CALL_BACKOFF_CAP_MS",
        CALL_BACKOFF_CAP_MS,
        "the longest wait between retries of such a call",
        "At least five attempts fit into the retry time.",
    ),
    Default(
        "LONGEST_RETRY_AFTER_MS",
        LONGEST_RETRY_AFTER_MS,
        "`Retry-After` of an answer; a longer one counts as this",
        "A proxy that asks for a day must not keep a member out for a day.",
    ),
    Default(
        "WORK_RETRY_FIRST_MS",
        WORK_RETRY_FIRST_MS,
        "`election.run(work, retry=True)` and the adapters: the pause after a first failure; it doubles",
        "A healthy candidate acquires the leadership meanwhile.",
    ),
    Default(
        "WORK_RETRY_CAP_MS",
        WORK_RETRY_CAP_MS,
        "`election.run(work, retry=True)`: the longest pause",
        "A work that fails everywhere, such as for a database that is down, resumes within half a minute.",
    ),
    Default(
        "CANDIDACY_RETRY_CAP_MS",
        CANDIDACY_RETRY_CAP_MS,
        "the adapters: the longest pause before a failed candidate campaigns again",
        "What failed was refused for good, such as by a rule; only an operator changes that.",
    ),
    Default(
        "HOOK_RETRY_CAP_MS",
        HOOK_RETRY_CAP_MS,
        "the sidecar's hooks: the longest wait between two deliveries of one change",
        "The program beside the sidecar restarts within seconds.",
    ),
    Default(
        "COMMIT_FLUSH_TIMEOUT_MS",
        COMMIT_FLUSH_TIMEOUT_MS,
        "commits that are queued when partitions are revoked",
        "A commit without an answer must not hold up the group's rebalance; the fence rejects it if it comes too late.",
    ),
    Default(
        "RECONNECT_TIMEOUT_MS",
        RECONNECT_TIMEOUT_MS,
        "`rota groups watch`, while no server answers",
        "Covers a rolling restart of the servers; then the command ends with 69.",
    ),
    Default(
        "SETTLE_TIMEOUT_MS",
        SETTLE_TIMEOUT_MS,
        "the adapters, where their interface waits for a rebalance",
        "Two sessions: the members of a group that lost one have rebalanced by then.",
    ),
    Default(
        "SIDECAR_WAIT_MS",
        SIDECAR_WAIT_MS,
        "`timeout` of the sidecar's `GET /wait`",
        "Shorter than the time-out of most HTTP clients.",
    ),
    Default(
        "SIDECAR_PAUSE_MS",
        SIDECAR_PAUSE_MS,
        "`pause_ms` of the sidecar's `POST /resign`",
        "Another candidate acquires the leadership meanwhile.",
    ),
    Default(
        "STORE_WAIT_MS",
        STORE_WAIT_MS,
        "`--timeout` of `rota db wait`",
        "A database that restores from its log, or a migration job that is still pulled, takes minutes.",
    ),
    Default(
        "WARN_AFTER_MS",
        WARN_AFTER_MS,
        "the SDK's warning that a member's calls are not served",
        "A restart of one replica takes less, and needs no warning.",
    ),
    Default(
        "WARN_AGAIN_MS",
        WARN_AGAIN_MS,
        "the same warning, repeated",
        "Stays visible in a log without filling it.",
    ),
    Default(
        "REMIND_MS",
        REMIND_MS,
        "the SDK's warning that a member that closes waits for work that has not ended, repeated",
        "An operator that waits for the process learns its reason before containers are killed.",
    ),
    Default(
        "LOOP_BLOCKED_MS",
        LOOP_BLOCKED_MS,
        "the SDK's warning that the event loop was blocked",
        "A sixth of the heartbeat interval: nothing is lost yet.",
    ),
)
"""Every default, in the order of the page."""
