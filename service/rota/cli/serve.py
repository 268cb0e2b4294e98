"""`rota serve`: a server in the foreground."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import Store

if TYPE_CHECKING:
    from pydantic import ValidationError


def serve(
    store: Store = None,
    http: Annotated[
        str | None, typer.Option(envvar="ROTA_HTTP", metavar="HOST:PORT", help="Where HTTP listens [127.0.0.1:8080].")
    ] = None,
    grpc: Annotated[
        str | None, typer.Option(envvar="ROTA_GRPC", metavar="HOST:PORT", help="Where gRPC listens too [nowhere].")
    ] = None,
    probes: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_PROBES",
            metavar="HOST:PORT",
            help="Where plain HTTP answers probes alone, for kubelets without certificates [nowhere].",
        ),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(envvar="ROTA_REDIS", metavar="URL", help="Where servers tell each other whom they heard."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            envvar="ROTA_WORKERS", metavar="N", help="Processes that share the ports; more need Postgres [1]."
        ),
    ] = None,
    worker_ports: Annotated[
        int | None,
        typer.Option(
            envvar="ROTA_WORKER_PORTS",
            metavar="PORT",
            help="First of the ports that are one worker's alone, HTTP's before gRPC's [any, on loopback only].",
        ),
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_PEER", metavar="HOST:PORT", help="Where other servers of the same store reach this one."
        ),
    ] = None,
    peer_secret_file: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_PEER_SECRET_FILE",
            metavar="FILE",
            help="What servers of the same store show each other, a secret a line; needed if --peer is not loopback.",
        ),
    ] = None,
    access_file: Annotated[
        str | None,
        typer.Option(envvar="ROTA_ACCESS_FILE", metavar="FILE", help="Who may do what, in TOML [anybody anything]."),
    ] = None,
    access_tokens_file: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_ACCESS_TOKENS_FILE", metavar="FILE", help="API tokens that `rota token --file` wrote."
        ),
    ] = None,
    allow_anonymous: Annotated[
        bool | None,
        typer.Option(
            "--allow-anonymous",
            envvar="ROTA_ALLOW_ANONYMOUS",
            help="Listen beyond loopback although everybody may do everything.",
            show_default=False,
        ),
    ] = None,
    tls_cert_file: Annotated[
        str | None,
        typer.Option(envvar="ROTA_TLS_CERT_FILE", metavar="FILE", help="Certificate chain in PEM [plain text]."),
    ] = None,
    tls_key_file: Annotated[
        str | None, typer.Option(envvar="ROTA_TLS_KEY_FILE", metavar="FILE", help="Its private key in PEM.")
    ] = None,
    tls_client_ca_file: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_TLS_CLIENT_CA_FILE",
            metavar="FILE",
            help="Who signs clients' certificates; they must show one.",
        ),
    ] = None,
    tls_client_optional: Annotated[
        bool | None,
        typer.Option(
            "--tls-client-optional",
            envvar="ROTA_TLS_CLIENT_OPTIONAL",
            help="Let in who shows a token instead of a certificate.",
            show_default=False,
        ),
    ] = None,
    trusted_proxies: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_TRUSTED_PROXIES",
            metavar="NETWORK,…",
            help="Proxies in front, whose X-Forwarded-Proto and X-Forwarded-For are believed [nobody's].",
        ),
    ] = None,
    peer_tls_cert_file: Annotated[
        str | None,
        typer.Option(envvar="ROTA_PEER_TLS_CERT_FILE", metavar="FILE", help="What servers of a store show each other."),
    ] = None,
    peer_tls_key_file: Annotated[
        str | None, typer.Option(envvar="ROTA_PEER_TLS_KEY_FILE", metavar="FILE", help="Its private key in PEM.")
    ] = None,
    peer_tls_ca_file: Annotated[
        str | None,
        typer.Option(envvar="ROTA_PEER_TLS_CA_FILE", metavar="FILE", help="Who signs servers' certificates."),
    ] = None,
    forward: Annotated[
        bool | None,
        typer.Option(
            envvar="ROTA_FORWARD",
            help="Answer for any group by asking its owner, or say who that is.",
            show_default=False,
        ),
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(envvar="ROTA_ADVERTISE", metavar="URL", help="Where others reach this server.")
    ] = None,
    advertise_grpc: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_ADVERTISE_GRPC",
            metavar="URL",
            help="The same over gRPC [its port at the host of --advertise].",
        ),
    ] = None,
    lease_ms: Annotated[
        int | None, typer.Option(envvar="ROTA_LEASE_MS", help="How long a dead server's groups wait [5000].")
    ] = None,
    fence_keys: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_FENCE_KEYS", metavar="FILE,…", help="Ed25519 keys in PEM: the first signs fencing tokens."
        ),
    ] = None,
    fence_token_ttl_ms: Annotated[
        int | None,
        typer.Option(envvar="ROTA_FENCE_TOKEN_TTL_MS", help="How long a signed fencing token is good for [60000]."),
    ] = None,
    shard_count: Annotated[
        int | None, typer.Option(envvar="ROTA_SHARD_COUNT", help="Fixed when the store is made [64].")
    ] = None,
    drain_delay_ms: Annotated[
        int | None,
        typer.Option(envvar="ROTA_DRAIN_DELAY_MS", help="From not ready to draining, for load balancers [0]."),
    ] = None,
    drain_timeout_ms: Annotated[
        int | None, typer.Option(envvar="ROTA_DRAIN_TIMEOUT_MS", help="Most time for open connections to end [5000].")
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(envvar="ROTA_OTLP", metavar="URL", help="Where OpenTelemetry spans go, by OTLP/HTTP [nowhere]."),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(envvar="ROTA_LOG_FORMAT", metavar="text|json", help="[text at a terminal, otherwise json]"),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(envvar="ROTA_LOG_LEVEL", metavar="LEVEL", help="debug, info, warning or error [info]."),
    ] = None,
) -> None:
    """Run a server in the foreground, until Ctrl-C or SIGTERM.

    Without --store it keeps everything in a SQLite file of yours: nothing else to set up. Every option can also be
    given by the environment variable that is named with it; the bounds of the protocol by ROTA_LIMITS__… only.
    """
    from pydantic import ValidationError

    from rota.server.lifecycle import run
    from rota.server.settings import Settings
    from rota.server.workers import run_workers

    given: dict[str, Any] = {name: value for name, value in locals().items() if name in Settings.model_fields}
    given = {name: value for name, value in given.items() if value is not None}
    if "log_format" not in given and sys.stderr.isatty():
        given["log_format"] = "text"
    try:
        settings = Settings(**given)
    except ValidationError as error:
        raise CommandFailed(_what_is_wrong(error), Exit.USAGE) from error
    raise typer.Exit(run(settings) if settings.workers == 1 else run_workers(settings))


def _what_is_wrong(error: ValidationError) -> str:
    """Every wrong setting by its name, without the values: a store's URL may hold a password."""
    return "; ".join(
        " ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, "))))
        for each in error.errors()
    )
