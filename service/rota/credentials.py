"""A client's credentials and trusted authorities: a token and certificates, read from files that may change."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import grpc

_VARIABLES = {
    "token_file": "ROTA_TOKEN_FILE",
    "ca_file": "ROTA_CA_FILE",
    "cert_file": "ROTA_CERT_FILE",
    "key_file": "ROTA_KEY_FILE",
}


SECRET_VARIABLES = ("ROTA_TOKEN", "ROTA_STORE", "ROTA_REDIS", "ROTA_WEBHOOK")
"""Variables that hold a token, or a URL that may hold a password."""

Version = tuple[tuple[int, int, int], ...]
"""Identifies the content of files: it changes when one of them changes."""


class CredentialsError(ValueError):
    """A token or a certificate cannot be read from its file. The text never quotes its content."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A token and certificates, or the files that hold them. Their content is never logged or shown.

    Files are read again when they have changed, the token's with each request, the certificates' for each connection:
    Kubernetes writes the next token, and cert-manager or a SPIFFE agent the next certificate, long before the last
    one expires. If a file cannot be read any more, its previous content is used.
    """

    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    _read: dict[str, tuple[Version, Any]] = field(default_factory=dict, repr=False, compare=False)
    """Parsed content of files with the version that was read, by kind."""

    def __post_init__(self) -> None:
        if self.token is not None and self.token_file is not None:
            raise ValueError("either a token or a token_file")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        for name in _VARIABLES:
            if (file := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(file))  # A program may name it by a string.

    def or_environment(self) -> Credentials:
        """Return these credentials, with missing values from `ROTA_TOKEN`, `ROTA_TOKEN_FILE` and so on."""
        files: dict[str, Any] = {name: getattr(self, name) or _path(variable) for name, variable in _VARIABLES.items()}
        token = self.token or (None if self.token_file else os.environ.get("ROTA_TOKEN") or None)
        if token is not None:
            files["token_file"] = None
        if self.cert_file is not None or self.key_file is not None:
            files |= {"cert_file": self.cert_file, "key_file": self.key_file}
        return replace(self, token=token, **files)

    @property
    def has_token(self) -> bool:
        return bool(self.token or self.token_file)

    def authorization(self) -> str | None:
        """Return the current value of the `Authorization` header; raise CredentialsError if the file cannot be read."""
        token = self.token if self.token_file is None else self._token_in_file(self.token_file)
        return f"Bearer {token}" if token else None

    def headers(self) -> dict[str, str]:
        authorization = self.authorization()
        return {} if authorization is None else {"authorization": authorization}

    def ssl_context(self) -> ssl.SSLContext | bool:
        """Return the trusted authorities and the certificate of HTTP connections; True is the system's authorities.

        Raises CredentialsError if the files cannot be read.
        """
        if not self._certificate_files():
            return True
        self._newest_context()
        context = NewestContext(ssl.PROTOCOL_TLS_CLIENT)
        context.newest = self._newest_context
        return context

    def channel_credentials(self) -> tuple[Version, grpc.ChannelCredentials]:
        """Return the credentials of a gRPC channel, which keeps them: another version needs another channel."""
        try:
            return self._newest("gRPC", self._certificate_files(), self._load_for_grpc)
        except OSError as error:
            raise CredentialsError(f"the certificates cannot be used: {_reason(error)}") from error

    def _certificate_files(self) -> list[Path]:
        return [file for file in (self.ca_file, self.cert_file, self.key_file) if file is not None]

    def _newest_context(self) -> ssl.SSLContext:
        try:
            context: ssl.SSLContext = self._newest("TLS", self._certificate_files(), self._load_for_http)[1]
        except (OSError, ValueError) as error:
            raise CredentialsError(f"the certificates cannot be used: {_reason(error)}") from error
        return context

    def _load_for_http(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file is not None and self.key_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
        return context

    def _load_for_grpc(self) -> grpc.ChannelCredentials:
        import grpc

        files = (self.ca_file, self.key_file, self.cert_file)
        return grpc.ssl_channel_credentials(*(file.read_bytes() if file is not None else None for file in files))

    def _token_in_file(self, path: Path) -> str:
        try:
            return str(self._newest("token", [path], lambda: path.read_text("ascii").strip())[1])
        except (OSError, UnicodeError) as error:
            raise CredentialsError(f"the token file {path} cannot be read: {_reason(error)}") from error

    def _newest(self, what: str, files: Sequence[Path], load: Callable[[], Any]) -> tuple[Version, Any]:
        """Return the content of the files with its version, or their previous content if they cannot be used now."""
        try:
            version = tuple(_version(file) for file in files)
            if what not in self._read or self._read[what][0] != version:
                self._read[what] = version, load()
        except (OSError, ValueError):
            if what not in self._read:
                raise
        return self._read[what]


class NewestContext(ssl.SSLContext):
    """Delegates each new connection to the context that `newest` returns. The creator sets `newest`."""

    newest: Callable[[], ssl.SSLContext]

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.newest().wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        return self.newest().wrap_socket(*args, **kwargs)


def _version(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
