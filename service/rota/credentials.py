"""How a client proves who it is, and whom it believes: a token, certificates, all from files that may change."""

from __future__ import annotations

import os
import ssl
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


@dataclass(frozen=True, slots=True)
class Credentials:
    """A token and certificates, or the files that hold them. Nothing of it is ever logged or shown.

    A token file is read again with each request that finds it changed: Kubernetes writes the next token into it long
    before the last one runs out. Certificates are read when a client connects: who renews them connects anew by then.
    """

    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    _read: dict[str, object] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.token is not None and self.token_file is not None:
            raise ValueError("either a token or a token_file")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")

    def or_environment(self) -> Credentials:
        """The same, with what is not given from `ROTA_TOKEN`, `ROTA_TOKEN_FILE`, `ROTA_CA_FILE` and so on."""
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
        """The `Authorization` header's value as it is now; raises ValueError where the file cannot be read."""
        token = self.token if self.token_file is None else self._token_in_file(self.token_file)
        return f"Bearer {token}" if token else None

    def headers(self) -> dict[str, str]:
        authorization = self.authorization()
        return {} if authorization is None else {"authorization": authorization}

    def ssl_context(self) -> ssl.SSLContext | bool:
        """For HTTP: whom to believe, and what to show. True is what the system believes."""
        if self.ca_file is None and self.cert_file is None:
            return True
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None and self.key_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
        except (OSError, ValueError) as error:
            raise ValueError(f"the certificates cannot be used: {_reason(error)}") from error
        return context

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """The same for gRPC."""
        import grpc

        try:
            files = (self.ca_file, self.key_file, self.cert_file)
            ca, key, cert = (path.read_bytes() if path is not None else None for path in files)
        except OSError as error:
            raise ValueError(f"the certificates cannot be used: {_reason(error)}") from error
        return grpc.ssl_channel_credentials(ca, key, cert)

    def _token_in_file(self, path: Path) -> str:
        try:
            found = path.stat()
            version = (found.st_ino, found.st_mtime_ns, found.st_size)
            if self._read.get("version") != version:
                self._read.update(token=path.read_text("ascii").strip(), version=version)
        except (OSError, UnicodeError) as error:
            if "token" not in self._read:
                raise ValueError(f"the token cannot be read from {path}: {_reason(error)}") from error
        return str(self._read["token"])


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
