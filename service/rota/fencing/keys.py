"""The keys that sign fencing tokens: Ed25519, in PEM files, published as a JWK set (RFC 7517, RFC 8037)."""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.algorithms import OKPAlgorithm
from jwt.exceptions import PyJWTError

PublicKeys = Mapping[str, Ed25519PublicKey]
"""Public keys by key id."""


class InvalidKeys(ValueError):
    """A key file or a key set is invalid."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """One key to sign with, and all accepted keys, including former ones and the next one."""

    signing: Ed25519PrivateKey
    public: PublicKeys

    @property
    def signing_id(self) -> str:
        return key_id(self.signing.public_key())

    def jwks(self) -> dict[str, Any]:
        """Return the public keys for services that check tokens; no secrets."""
        of_all = {"alg": "EdDSA", "use": "sig"}
        return {"keys": [{**_jwk(key), "kid": name, **of_all} for name, key in self.public.items()]}


def read_keys(paths: Sequence[Path]) -> KeyRing:
    """Read the keys in PEM files, private (PKCS #8) or public: the first signs, all are published. Raises
    `InvalidKeys`.

    To rotate: add the new key at the end; when all verifiers have fetched it, move it to the front; remove the old one
    when its last token has expired.
    """
    keys = [_read_key(path) for path in paths]
    if not keys or not isinstance(keys[0], Ed25519PrivateKey):
        raise InvalidKeys("the first key file must hold a private key, to sign with")
    public = [key.public_key() if isinstance(key, Ed25519PrivateKey) else key for key in keys]
    return KeyRing(keys[0], {key_id(key): key for key in public})


def public_keys(jwks: Mapping[str, Any]) -> dict[str, Ed25519PublicKey]:
    """Return the Ed25519 keys of a JWK set by id, without keys of other kinds. Raises `InvalidKeys`."""
    try:
        ours = [jwk for jwk in jwks["keys"] if jwk.get("kty") == "OKP" and jwk.get("crv") == "Ed25519"]
        keys = [OKPAlgorithm.from_jwk(jwk) for jwk in ours]
    except (AttributeError, KeyError, TypeError, ValueError, PyJWTError) as error:
        raise InvalidKeys(f"not a JWK set: {error!r}") from error
    # Use thumbprints instead of the set's ids, so that an id always identifies the same key.
    return {key_id(key): key for key in keys if isinstance(key, Ed25519PublicKey)}


def key_id(key: Ed25519PublicKey) -> str:
    """Return the key's thumbprint (RFC 7638) over members sorted by name, so that a key has the same id everywhere."""
    members = json.dumps(_jwk(key), sort_keys=True, separators=(",", ":"))
    return urlsafe_b64encode(hashlib.sha256(members.encode()).digest()).rstrip(b"=").decode()


def new_key() -> bytes:
    """Return a new private key, as PEM."""
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Ed25519PrivateKey.generate().private_bytes(*pem, serialization.NoEncryption())


def _jwk(key: Ed25519PublicKey) -> dict[str, Any]:
    return OKPAlgorithm.to_jwk(key, as_dict=True)


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
