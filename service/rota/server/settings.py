"""Settings of a server, from the environment (`ROTA_…`) or the command line."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rota.core.access.browsers import Site, parse_names, parse_origins, site_of
from rota.core.access.budgets import Budgets
from rota.core.access.sources import Network, parse_networks
from rota.protocol.defaults import LEASE_MS
from rota.protocol.ids import NAME_PATTERN, NAMESPACE_PATTERN
from rota.protocol.limits import Limits
from rota.server.access.files import read_access_file
from rota.server.access.tokens import read_tokens
from rota.server.liveness.urls import check_liveness_url
from rota.server.observability.logs import LogFormat
from rota.server.peer_secrets import read_peer_secrets
from rota.storage.urls import default_store_url

MIN_LEASE_MS = 1_000


@dataclass(frozen=True, slots=True)
class Metavar:
    """The form of a setting's value in `rota serve --help`."""

    text: str


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on. Port 0 selects a free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @classmethod
    def parse(cls, text: Any) -> Address:
        """Parse `HOST:PORT` or `[::1]:PORT`; raise ValueError otherwise."""
        if isinstance(text, Address):
            return text
        host, colon, port = str(text).rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            raise ValueError("must be HOST:PORT")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


def _checked_liveness_url(url: str) -> str:
    check_liveness_url(url)
    return url


def _checked_secret_file(path: Path) -> Path:
    read_peer_secrets(path)
    return path


def _split(given: Any) -> Any:
    return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given


def _checked_access_file(path: Path) -> Path:
    read_access_file(path)
    return path


def _checked_tokens_file(path: Path) -> Path:
    read_tokens(path)
    return path


_AccessFile = Annotated[Path, AfterValidator(_checked_access_file), Metavar("FILE")]
_TokensFile = Annotated[Path, AfterValidator(_checked_tokens_file), Metavar("FILE")]
_LivenessUrl = Annotated[str, AfterValidator(_checked_liveness_url), Metavar("URL")]
_SecretFile = Annotated[Path, AfterValidator(_checked_secret_file), Metavar("FILE")]
_Paths = Annotated[tuple[Path, ...], BeforeValidator(_split), NoDecode, Metavar("FILE,…")]
_Group = Annotated[str, Field(pattern=f"^{NAMESPACE_PATTERN}/{NAME_PATTERN}$")]
_Groups = Annotated[tuple[_Group, ...], BeforeValidator(_split), NoDecode, Metavar("NAMESPACE/GROUP,…")]
_Networks = Annotated[tuple[Network, ...], BeforeValidator(parse_networks), NoDecode, Metavar("NETWORK,…")]
_Names = Annotated[tuple[str, ...], BeforeValidator(parse_names), NoDecode, Metavar("NAME,…")]
_Origins = Annotated[tuple[str, ...], BeforeValidator(parse_origins), NoDecode, Metavar("ORIGIN,…")]
_Address = Annotated[Address, BeforeValidator(Address.parse), NoDecode, Metavar("HOST:PORT")]
_File = Annotated[Path, Metavar("FILE")]
_Url = Annotated[str, Metavar("URL")]


class Settings(BaseSettings):
    """The settings, read from `ROTA_STORE`, `ROTA_HTTP` and so on; limits from `ROTA_LIMITS__GROUP_MAX_SIZE` and so on.

    `rota serve` has an option for each field, with the field's description as its help.
    """

    model_config = SettingsConfigDict(env_prefix="ROTA_", env_nested_delimiter="__", frozen=True, extra="forbid")

    store: _Url = Field(
        default_factory=default_store_url,
        description="`sqlite:///PATH` or `postgresql://…[?password_file=PATH]`; without it a SQLite file in the "
        "user's data folder.",
    )
    http: _Address = Field(default=Address("127.0.0.1", 8080), description="Address that HTTP listens on.")
    grpc: _Address | None = Field(
        default=None, description="Address that gRPC listens on, if any. Needs the extra `grpc`."
    )
    probes: _Address | None = Field(
        default=None,
        description="Address, if any, that answers `/healthz` and `/readyz`, and nothing else, in plain HTTP: for "
        "kubelets without certificates.",
    )
    redis: _LivenessUrl | None = Field(
        default=None,
        description="Redis or Valkey in which replicas share the members' last heartbeats: "
        "`redis://…[?password_file=PATH]`, `rediss://…`.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Processes that share the ports; more than one needs Postgres.",
    )
    worker_ports: Annotated[int, Metavar("PORT")] | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="With several workers: first of the ports that belong to one worker each, HTTP's before gRPC's. "
        "Without it they are free ones, on loopback only.",
    )
    peer: _Address = Field(
        default=Address("127.0.0.1", 0),
        description="Address at which other replicas of the same store reach this one.",
    )
    peer_secret_file: _SecretFile | None = Field(
        default=None,
        description="Secrets, one per line, by which replicas of a store authenticate each other: a replica sends the "
        "first and accepts any. Needed if `peer` is not loopback.",
    )
    access_file: _AccessFile | None = Field(
        default=None,
        description="Rules, quotas and issuers in TOML. Without it every caller may do everything.",
    )
    access_tokens_file: _TokensFile | None = Field(
        default=None,
        description="Digests of API tokens as `rota token --file` writes them, in addition to those in the store.",
    )
    allow_anonymous: bool = Field(
        default=False, description="Listen beyond loopback although every caller may do everything."
    )
    tls_cert_file: _File | None = Field(
        default=None, description="Certificate chain in PEM for HTTP and gRPC; with it only TLS is served."
    )
    tls_key_file: _File | None = Field(default=None, description="The certificate's private key in PEM.")
    tls_client_ca_file: _File | None = Field(
        default=None,
        description="Authorities of clients' certificates: each caller must present one, which identifies it.",
    )
    tls_client_optional: bool = Field(
        default=False,
        description="Accept callers that send a token instead of a certificate. gRPC then requests no certificate.",
    )
    trusted_proxies: _Networks = Field(
        default=(),
        description="Addresses and networks, `A,B`, of trusted proxies: their `X-Forwarded-Proto`, `-For` and "
        "`-Prefix` count.",
    )
    allow_host: _Names = Field(
        default=(),
        description="Names, `A,*.B`, by which callers may reach this server, in addition to its own; `*` is any. "
        "Without an access file other names are rejected. With one every name is accepted unless this is set.",
    )
    allow_origin: _Origins = Field(
        default=(),
        description="Other origins, `https://A,https://B`, with pages that may send requests: needed if browsers use "
        "a proxy's URL and the proxy changes Host.",
    )
    peer_tls_cert_file: _File | None = Field(
        default=None, description="Certificate chain in PEM that replicas present to each other; its name is rota-peer."
    )
    peer_tls_key_file: _File | None = Field(default=None, description="Its private key in PEM.")
    peer_tls_ca_file: _File | None = Field(
        default=None, description="Authorities that sign only replicas' certificates."
    )
    forward: bool = Field(
        default=True,
        description="Answer for any group by forwarding to its owner; otherwise NOT_COORDINATOR names the owner.",
    )
    advertise: _Url | None = Field(default=None, description="URL at which others reach this replica.")
    advertise_grpc: _Url | None = Field(
        default=None,
        pattern="^grpcs?://",
        description="The same over gRPC, `grpc://HOST:PORT`. Without it: gRPC's port at the host of `advertise`.",
    )
    http_direct: bool = Field(
        default=True,
        description="Answer members' frequent calls in the HTTP parser. Without it FastAPI answers every request, "
        "which is slower but easier to debug.",
    )
    fence_keys: _Paths = Field(
        default=(),
        description="PEM files with Ed25519 keys, `A,B`: the first signs fencing tokens, all are published.",
    )
    fence_token_ttl_ms: int = Field(
        default=60_000, ge=1_000, le=86_400_000, description="Validity of a signed fencing token."
    )
    shard_count: int = Field(default=64, ge=1, le=4_096, description="Fixed when the store is created.")
    journal_keep_days: int = Field(
        default=90,
        ge=0,
        le=36_500,
        description="Whole days (UTC) before today that the journal keeps. Older lines are deleted, except those "
        "that a registered reader has not yet read; 0 keeps all.",
    )
    lease_ms: int = Field(
        default=LEASE_MS,
        ge=MIN_LEASE_MS,
        le=600_000,
        description="Time for which a dead replica keeps its shards on Postgres.",
    )
    critical_groups: _Groups = Field(
        default=(),
        description="Groups, `NAMESPACE/GROUP,…`, with their own metric: an alert names them at once.",
    )
    drain_delay_ms: int = Field(
        default=0, ge=0, le=600_000, description="Time between not ready and draining, for load balancers to notice."
    )
    drain_timeout_ms: int = Field(
        default=5_000,
        ge=0,
        le=600_000,
        description="Maximum time to wait for open connections to close while draining.",
    )
    otlp: _Url | None = Field(
        default=None,
        pattern="^https?://",
        description="Collector of spans over OTLP/HTTP, `http://HOST:4318`. Needs the extra `otel`.",
    )
    log_format: Annotated[LogFormat, Metavar("json|text")] = Field(
        default="json", description="Format of log lines; `rota serve` at a terminal writes text."
    )
    log_level: Annotated[str, Metavar("LEVEL")] = Field(
        default="info",
        pattern="^(?i:debug|info|warning|error)$",
        description="Minimum level that is logged: debug, info, warning or error.",
    )
    limits: Limits = Field(default=Limits(), description="Bounds of the protocol.")
    budgets: Budgets = Field(default=Budgets(), description="Budgets for callers that are not yet authenticated.")

    @model_validator(mode="after")
    def _refuse_negative_limits(self) -> Self:
        for limit in fields(Limits):
            if getattr(self.limits, limit.name) < 0:
                raise ValueError(f"limits.{limit.name} must not be negative")
        return self

    @model_validator(mode="after")
    def _refuse_empty_budgets(self) -> Self:
        for budget in fields(Budgets):
            share = getattr(self.budgets, budget.name)
            if not 1 <= share.per_source <= share.in_all:
                raise ValueError(
                    f"budgets.{budget.name}: per_source must be at least 1, and in_all at least per_source"
                )
        return self

    @model_validator(mode="after")
    def _refuse_ports_past_the_last(self) -> Self:
        if self.worker_ports is not None and self.worker_ports + 2 * self.workers - 1 > 65_535:
            raise ValueError("worker_ports must leave two ports for each worker")
        return self

    @model_validator(mode="after")
    def _guard_peers(self) -> Self:
        """Check that peers authenticate: a caller at their port can act for every client."""
        _all_or_none(self, "peer_tls_cert_file", "peer_tls_key_file", "peer_tls_ca_file")
        if not self.peer.is_loopback and self.peer_secret_file is None and self.peer_tls_ca_file is None:
            raise ValueError("peer beyond loopback needs peer_secret_file or peer_tls_ca_file")
        return self

    @model_validator(mode="after")
    def _guard_clients(self) -> Self:
        """Check that a service without access control is intended."""
        _all_or_none(self, "tls_cert_file", "tls_key_file")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("tls_client_ca_file needs tls_cert_file and tls_key_file")
        if self.tls_client_optional and (self.tls_client_ca_file is None or self.access_file is None):
            raise ValueError("tls_client_optional needs tls_client_ca_file and access_file")
        if self.is_open_to_all and not self.allow_anonymous:
            raise ValueError("listening beyond loopback needs access_file, tls_client_ca_file or allow_anonymous")
        return self

    @property
    def is_open_to_all(self) -> bool:
        """Whether callers from other machines may do everything."""
        reached = [address for address in (self.http, self.grpc) if address is not None and not address.is_loopback]
        return bool(reached) and not self.is_guarded

    def site(self, *urls: str) -> Site:
        """Return the names and origins of a server at these URLs."""
        known = (*urls, self.advertise or "")
        own = [name for name in (self.http.host, *map(_host_of, known)) if name]
        beyond = not self.http.is_loopback
        return site_of(own, self.allow_host, self.allow_origin, demands_proof=self.is_guarded, beyond_loopback=beyond)

    @property
    def is_guarded(self) -> bool:
        """Whether there is access control."""
        return self.access_file is not None or self.tls_client_ca_file is not None


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _all_or_none(settings: Settings, *names: str) -> None:
    if len({getattr(settings, name) is None for name in names}) > 1:
        raise ValueError(f"{', '.join(names)} go together")
