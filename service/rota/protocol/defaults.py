"""Default times of the SDK, the command line, the sidecar and the adapters, each with its reason. Milliseconds.

Every program of ours takes its defaults from here, so that one member does not wait for longer than another.
Below each default stand where it applies, and why it is this value: `docs/reference/defaults.md` is made of that.
"""

from __future__ import annotations

from typing import Final

# --- membership ------------------------------------------------------------------------------

SESSION_TIMEOUT_MS: Final = 15_000
"""`session_timeout` of every member of the SDK; `rota lead`, `rota work`, `rota sidecar`; the adapters

How long work stands still after a crash. Holders survive a replica's crash, a restart, and a network that is silent for
6 s; [the sums](../explanation/failures.md#the-sums) say for how long each of them does.
"""
SERVER_SESSION_TIMEOUT_MS: Final = 45_000
"""the server, if a join over HTTP or gRPC names no `session_timeout_ms`

Kafka's default. A client without our SDK schedules its own heartbeats, often from a script.
"""
DEMO_SESSION_TIMEOUT_MS: Final = 2_000
"""`rota demo`

The person at the terminal watches a killed worker being replaced.
"""
REBALANCE_TIMEOUT_MS: Final = 60_000
"""`rebalance_timeout` of elections, Connect workers and plain members; `release_timeout` of the set partitioner; a join
that names none

Kafka Connect's default: the longest that one member's `on_revoked` delays the others.
"""
CONSUMER_REBALANCE_TIMEOUT_MS: Final = 300_000
"""`rebalance_timeout` of consumers and worker pools; a join of the type `consumer` that names none

Kafka's `max.poll.interval.ms`: a consumer may have to finish a long record before it gives up a partition.
"""
COMMAND_REBALANCE_TIMEOUT_MS: Final = 10_000
"""`rota lead` and `rota sidecar --lead`, or the session if that is longer

Their command or hooks stop within the session, so the other candidates need not wait for longer.
"""
HEARTBEAT_INTERVAL_MS: Final = 3_000
"""heartbeats that the coordinator does not park; at most a fifth of the session, as those that it parks

Kafka's default. With a fifth of the session, two heartbeats may be lost before the session expires.
"""
LEASE_MS: Final = 3_000
"""`--lease-ms` of `rota serve`

How long a replica's crash leaves its groups without an owner; a new process waits as long after its start, if the
former one was killed. A replica that pauses for longer loses its shards, and no member anything.
"""
RETURN_DELAY_MS: Final = 300_000
"""`scheduled_rebalance_max_delay` of Connect workers

Kafka Connect's default: a worker that restarts within it gets its own tasks back.
"""
PREEMPT_AFTER_MS: Final = 30_000
"""`preempt_after` of candidates; candidates without one in their metadata

A candidate that restarts again and again does not take the leadership each time. Two sessions.
"""
DRAIN_GRANT_MS: Final = 300_000
"""a permission to leave, `rota groups drain`

An evictor that has died blocks the others no longer. Most machines stop their processes within it.
"""
QUARANTINE_WINDOW_MS: Final = 3_600_000
"""the longest time between two falls in a row, of holders of one unit

Long enough for restarts that back off; holders that fall for other reasons do not add up over weeks.
"""
TOPICS_REFRESH_MS: Final = 10_000
"""`topics_refresh_interval` of consumers, `refresh_interval` of Connect workers, `rota work`, `rota sidecar`

If the coordinator cannot publish changes of topics: one small call of the leader each time. Elsewhere the leader
compares after three of these, for static members that restart with other topics.
"""
TOPICS_WAIT_MS: Final = 20_000
"""the parked call that waits for changes of topics

Shorter than the 30 s after which many proxies cut a silent connection.
"""
STREAM_SILENCE_MS: Final = 45_000
"""a stream of events, of the SDK and of `rota groups watch`, that is opened anew when it is silent

The server pings a stream every 15 s: one that is silent for three pings is dead.
"""
AUTO_COMMIT_MS: Final = 5_000
"""`auto_commit_interval` of consumers and worker pools

As Kafka's consumers: a process that is killed repeats the work of five seconds at most.
"""

# --- stopping --------------------------------------------------------------------------------

STOP_DRAIN_MS: Final = 5_000
"""`drain_timeout` of `run()`, `close()` and the end of an `async with` block; `--drain-ms` of `rota lead`, `rota hold`
and `rota work`

With the rest, a stop takes 7.5 s at most. Docker kills 10 s after SIGTERM, Kubernetes after 30 s.
"""
STOP_REST_MS: Final = 2_500
"""the rest of a stop, after the drain: cancelled work cleans up, progress is committed and the group is left

A commit and a LeaveGroup take milliseconds; a coordinator that is silent must not hold up the stop.
"""
REVOKE_DRAIN_MS: Final = 0
"""`drain_timeout` of a worker pool at a rebalance

The work is cancelled at once, so the next member starts at once. Set it if work must finish a step first.
"""
COMMAND_GRACE_MS: Final = 2_000
"""`--grace-ms` of `rota lead`, `rota hold` and `rota work`; at most a fifth of the session

From TERM to KILL. It ends before the deadline, so a longer one shortens the outages that a command survives.
"""
COMMAND_MARGIN_MS: Final = 1_000
"""how long before its deadline such a command is killed; at most a tenth of the session

A busy machine takes a moment to end all processes of a command.
"""
COMMIT_FLUSH_TIMEOUT_MS: Final = 2_000
"""commits that are queued when partitions are revoked

A commit without an answer must not hold up the group's rebalance; the fence rejects it if it comes too late.
"""
HOOKS_TIMEOUT_MS: Final = 5_000
"""`--revoke-timeout-ms` of `rota sidecar`; one delivery to its webhook

How long hooks may delay an orderly hand-over; short enough to end within Docker's 10 s.
"""

# --- calls and retries -----------------------------------------------------------------------

REQUEST_TIMEOUT_MS: Final = 5_000
"""one attempt of any call, beyond the time that it is parked

A durable write takes milliseconds; a replica that takes over a shard answers within seconds.
"""
HEARTBEAT_THREAD_TIMEOUT_MS: Final = 1_000
"""one heartbeat of `heartbeat_thread`, sent when the event loop is blocked

Half of the session has passed by then, so that another try must still fit into the rest.
"""
CONNECT_TIMEOUT_MS: Final = 1_500
"""one TCP and TLS connection of the SDK

Leaves time in the attempt for another address; a lost SYN packet is sent again after 1 s.
"""
RETRY_TIMEOUT_MS: Final = 10_000
"""`retry_timeout` of `connect()`: calls that are not a member's (topics, offsets, descriptions)

Covers the restart of a replica and the takeover of its shards. A member retries for as long as it lives.
"""
COMMAND_LINE_TIMEOUT_MS: Final = 10_000
"""one call of the commands, such as `rota groups list`, which do not retry

Long enough for a full list from a busy store, short enough for a person at a terminal.
"""
COMPLETION_TIMEOUT_MS: Final = 2_000
"""the call with which a shell completes the name of a group or topic

A shell that completes shows nothing meanwhile; without an answer the name is typed.
"""
BACKOFF_FIRST_MS: Final = 100
"""a member's first retry; each further failure doubles it, with full jitter

Kafka's `retry.backoff.ms`.
"""
BACKOFF_CAP_MS: Final = 5_000
"""a member's longest wait between retries

A thousand members that wait for a server make 400 calls a second at most.
"""
HEARTBEAT_BACKOFF_CAP_MS: Final = 1_000
"""the same while a member holds something; at most a tenth of the session

A member that was cut off renews its session within 1.5 s after the path is back.
"""
CALL_BACKOFF_FIRST_MS: Final = 50
"""the first retry of a call that is not a member's

A program waits for the result, and there are few such calls.
"""
CALL_BACKOFF_CAP_MS: Final = 2_000
"""the longest wait between retries of such a call

At least five attempts fit into the retry time.
"""
LONGEST_RETRY_AFTER_MS: Final = 30_000
"""`Retry-After` of an answer; a longer one counts as this

A proxy that asks for a day must not keep a member out for a day.
"""
WORK_RETRY_FIRST_MS: Final = 1_000
"""`election.run(work, retry=True)` and the adapters: the pause after a first failure; it doubles

A healthy candidate acquires the leadership meanwhile.
"""
WORK_RETRY_CAP_MS: Final = 30_000
"""`election.run(work, retry=True)`: the longest pause

A work that fails everywhere, such as for a database that is down, resumes within half a minute.
"""
CANDIDACY_RETRY_CAP_MS: Final = 60_000
"""the adapters: the longest pause before a failed candidate campaigns again

What failed was refused for good, such as by a rule; only an operator changes that.
"""
HOOK_RETRY_CAP_MS: Final = 10_000
"""the sidecar's hooks: the longest wait between two deliveries of one change

The program beside the sidecar restarts within seconds.
"""
RECONNECT_TIMEOUT_MS: Final = 30_000
"""`rota groups watch`, while no server answers

Covers a rolling restart of the servers; then the command ends with 69.
"""

# --- waiting for a state ---------------------------------------------------------------------

SETTLE_TIMEOUT_MS: Final = 30_000
"""the adapters, if their interface waits for a rebalance

Two sessions: the members of a group that lost one have rebalanced by then.
"""
SIDECAR_WAIT_MS: Final = 30_000
"""`timeout` of the sidecar's `GET /wait`

Shorter than the time-out of most HTTP clients.
"""
SIDECAR_PAUSE_MS: Final = 1_000
"""`pause_ms` of the sidecar's `POST /resign`

Another candidate acquires the leadership meanwhile.
"""
STORE_WAIT_MS: Final = 300_000
"""`--timeout` of `rota db wait`

A database that restores from its log, or a migration job that is still pulled, takes minutes.
"""

# --- warnings --------------------------------------------------------------------------------

WARN_AFTER_MS: Final = 1_000
"""the SDK's warning that a member's calls are not served

A restart of one replica takes less, and needs no warning.
"""
WARN_AGAIN_MS: Final = 60_000
"""the same warning, repeated

Stays visible in a log without filling it.
"""
REMIND_MS: Final = 10_000
"""the SDK's warning that a member that closes waits for work that has not ended, repeated

An operator that waits for the process learns its reason before containers are killed.
"""
LOOP_BLOCKED_MS: Final = 500
"""the SDK's warning that the event loop was blocked

A sixth of the heartbeat interval: nothing is lost yet.
"""
