"""The keys that sign fencing tokens: Ed25519, in PEM files, published as a JWK set (RFC 7517, RFC 8037)."""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PublicKeys = Mapping[str, Ed25519PublicKey]
"""By key id."""


class InvalidKeys(ValueError):
    """A key file or a key set is invalid."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """One key to sign with, and all that are to be accepted: also those of before, and the next one."""

    signing: Ed25519PrivateKey
    public: PublicKeys

    @property
    def signing_id(self) -> str:
        return key_id(self.signing.public_key())

    def jwks(self) -> dict[str, Any]:
        """What services that check tokens need to know; nothing secret."""
        return {"keys": [_jwk(key) for key in self.public.values()]}


def read_keys(paths: Sequence[Path]) -> KeyRing:
    """The keys in PEM files, private (PKCS #8) or public: the first signs, all are published. Raises `InvalidKeys`.

    To rotate: add the new key at the end; once all verifiers have fetched it, put it first; drop the old one when its
    last token has run out.
    """
    keys = [_read_key(path) for path in paths]
    if not keys or not isinstance(keys[0], Ed25519PrivateKey):
        raise InvalidKeys("the first key file must hold a private key, to sign with")
    public = [key.public_key() if isinstance(key, Ed25519PrivateKey) else key for key in keys]
    return KeyRing(keys[0], {key_id(key): key for key in public})


def public_keys(jwks: Mapping[str, Any]) -> dict[str, Ed25519PublicKey]:
    """The Ed25519 keys of a JWK set, by id; keys of other kinds are left out. Raises `InvalidKeys`."""
    try:
        ours = [jwk for jwk in jwks["keys"] if jwk.get("kty") == "OKP" and jwk.get("crv") == "Ed25519"]
        keys = [Ed25519PublicKey.from_public_bytes(from_base64url(jwk["x"])) for jwk in ours]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidKeys(f"not a JWK set: {error!r}") from error
    # By thumbprint, whatever the set calls them: then an id cannot stand for another key.
    return {key_id(key): key for key in keys}


def key_id(key: Ed25519PublicKey) -> str:
    """The key's thumbprint (RFC 7638) over members sorted by name, so that the same key has the same id everywhere."""
    members = {"crv": "Ed25519", "kty": "OKP", "x": base64url(_raw(key))}
    return base64url(hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest())


def new_key() -> bytes:
    """A fresh private key, as PEM."""
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Ed25519PrivateKey.generate().private_bytes(*pem, serialization.NoEncryption())


def base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Strictly: ValueError for what `base64url` would not have written."""
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64url(data) != text:
        raise ValueError("not base64url")
    return data


def _jwk(key: Ed25519PublicKey) -> dict[str, str]:
    return {"kty": "OKP", "crv": "Ed25519", "x": base64url(_raw(key)), "kid": key_id(key), "alg": "EdDSA", "use": "sig"}


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def _read_key(path: Path) -> Ed25519PrivateKey | Ed25519PublicKey:
    try:
        pem = path.read_bytes()
        is_private = b"PRIVATE KEY" in pem
        key = (
            serialization.load_pem_private_key(pem, password=None)
            if is_private
            else serialization.load_pem_public_key(pem)
        )
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise InvalidKeys(f"{path} holds no key in PEM: {error}") from error
    if not isinstance(key, Ed25519PrivateKey | Ed25519PublicKey):
        raise InvalidKeys(f"{path} holds another kind of key; Ed25519 is needed")
    return key
