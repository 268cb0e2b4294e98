"""Signed fencing tokens: checked offline, by keys that rotate, and refused once a newer generation has been seen."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from msgspec.structs import replace

from rota.fencing.errors import InvalidToken, StaleToken
from rota.fencing.keys import InvalidKeys, KeyRing, new_key, public_keys, read_keys
from rota.fencing.tokens import Fence, FencingToken, sign, verify
from rota.protocol.fencing_token import fencing_token

NOW = 1_700_000_000
TOKEN = FencingToken("default", "billing", 7, "writer-1", True, NOW, NOW + 60, fencing_token(7), "writer")


def a_key(folder: Path, name: str = "key") -> Path:
    path = folder / f"{name}.pem"
    path.write_bytes(new_key())
    return path


@pytest.fixture
def key_pairs(tmp_path: Path) -> KeyRing:
    return read_keys([a_key(tmp_path)])


def a_fence(key_pairs: KeyRing, highest: dict[str, int] | None = None) -> Fence:
    return Fence(lambda: key_pairs.public, highest=highest, clock=lambda: NOW)


def test_signed_tokens_are_read_with_published_keys_alone(key_pairs: KeyRing) -> None:
    published = json.loads(json.dumps(key_pairs.jwks()))

    assert verify(sign(TOKEN, key_pairs), public_keys(published), now=NOW) == TOKEN


def test_any_jwt_library_reads_it(key_pairs: KeyRing) -> None:
    import jwt

    key = jwt.PyJWKSet.from_dict(key_pairs.jwks())[key_pairs.signing_id]
    claims = jwt.decode(sign(TOKEN, key_pairs), key, algorithms=["EdDSA"], issuer="rota", options={"verify_exp": False})

    assert (claims["sub"], claims["generation_id"], claims["is_leader"]) == ("writer-1", 7, True)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_token_that_was_changed_anywhere_is_refused(key_pairs: KeyRing, part: int) -> None:
    parts = sign(TOKEN, key_pairs).split(".")
    for at in range(0, len(parts[part]), 7):
        changed = "A" if parts[part][at] != "A" else "B"
        forged = [*parts]
        forged[part] = parts[part][:at] + changed + parts[part][at + 1 :]
        with pytest.raises(InvalidToken):
            verify(".".join(forged), key_pairs.public, now=NOW)


@pytest.mark.parametrize("changes", [{"alg": "none"}, {"alg": "HS256"}, {"typ": "JWT"}, {"kid": "other"}, {"crit": []}])
def test_a_token_of_another_kind_is_refused(key_pairs: KeyRing, changes: dict[str, object]) -> None:
    _, claims, _ = sign(TOKEN, key_pairs).split(".")
    header = json.dumps({"alg": "EdDSA", "typ": "rota-fence+jwt", "kid": key_pairs.signing_id, **changes}).encode()
    signed = f"{urlsafe_b64encode(header).rstrip(b'=').decode()}.{claims}"
    signature = urlsafe_b64encode(key_pairs.signing.sign(signed.encode())).rstrip(b"=").decode()

    with pytest.raises(InvalidToken):
        verify(f"{signed}.{signature}", key_pairs.public, now=NOW)


def test_another_servers_token_is_refused(key_pairs: KeyRing, tmp_path: Path) -> None:
    other = read_keys([a_key(tmp_path, "other")])

    with pytest.raises(InvalidToken, match="not known"):
        verify(sign(TOKEN, other), key_pairs.public, now=NOW)


def test_a_fence_refuses_what_is_older_than_it_has_seen(key_pairs: KeyRing) -> None:
    fence = a_fence(key_pairs)
    old, new = sign(TOKEN, key_pairs), sign(replace(TOKEN, generation_id=8, fencing_token=fencing_token(8)), key_pairs)

    fence.admit(old)
    fence.admit(new)
    with pytest.raises(StaleToken, match=f"{fencing_token(8)} has been here"):
        fence.admit(old)
    fence.admit(sign(replace(TOKEN, group_id="another"), key_pairs))


def test_a_fence_keeps_what_it_has_seen_where_it_is_configured(key_pairs: KeyRing) -> None:
    highest: dict[str, int] = {}
    a_fence(key_pairs, highest).admit(sign(replace(TOKEN, generation_id=8, fencing_token=fencing_token(8)), key_pairs))

    with pytest.raises(StaleToken):
        a_fence(key_pairs, highest).admit(sign(TOKEN, key_pairs))
    assert highest == {"default/billing": fencing_token(8), "default/billing/writer": fencing_token(8)}


def test_a_fence_rejects_a_predecessor_and_admits_other_members(key_pairs: KeyRing) -> None:
    fence = a_fence(key_pairs)
    beside = replace(TOKEN, member_id="other-1", group_instance_id="other")
    dynamic = replace(TOKEN, member_id="dynamic", group_instance_id=None)
    successor = replace(TOKEN, member_id="writer-2", fencing_token=fencing_token(7, 1))

    fence.admit(sign(TOKEN, key_pairs))
    fence.admit(sign(successor, key_pairs))

    with pytest.raises(StaleToken, match="default/billing/writer is over"):
        fence.admit(sign(TOKEN, key_pairs))
    for token in (beside, dynamic, successor):
        fence.admit(sign(token, key_pairs))


def test_a_token_that_contradicts_its_generation_is_refused(key_pairs: KeyRing) -> None:
    with pytest.raises(InvalidToken):
        verify(sign(replace(TOKEN, fencing_token=fencing_token(8)), key_pairs), key_pairs.public, now=NOW)


def test_a_token_of_another_group_or_tenant_opens_nothing(key_pairs: KeyRing) -> None:
    fence = a_fence(key_pairs)

    with pytest.raises(InvalidToken, match="does not own"):
        fence.admit(sign(TOKEN, key_pairs), group_id="reports")
    with pytest.raises(InvalidToken, match="does not own"):
        fence.admit(sign(TOKEN, key_pairs), namespace="other")


def test_keys_rotate_without_a_token_that_nobody_can_check(tmp_path: Path) -> None:
    """New key last, then first, then alone: a service that fetched the keys one step ago can verify today's tokens."""
    first, second = tmp_path / "first.pem", tmp_path / "second.pem"
    old, new = new_key(), new_key()
    first.write_bytes(old)
    second.write_bytes(new)
    fetched = read_keys([first, second]).public
    before = sign(TOKEN, read_keys([first, second]))

    first.write_bytes(new + b"\n")
    second.write_bytes(old + b"\n")
    after = sign(TOKEN, read_keys([first, second]))

    assert before.split(".")[0] != after.split(".")[0]
    assert verify(after, fetched, now=NOW) == TOKEN
    assert verify(before, read_keys([first, second]).public, now=NOW) == TOKEN


def test_a_retired_key_may_be_left_as_its_public_half(tmp_path: Path) -> None:
    retired = read_keys([a_key(tmp_path, "retired")])
    public = tmp_path / "public.pem"
    pem = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(retired.signing.public_key().public_bytes(*pem))

    key_pairs = read_keys([a_key(tmp_path), public])

    assert verify(sign(TOKEN, retired), key_pairs.public, now=NOW) == TOKEN
    with pytest.raises(InvalidKeys, match="private key"):
        read_keys([public])


def test_keys_that_are_none_are_refused_with_their_name(tmp_path: Path) -> None:
    other_kind = tmp_path / "ec.pem"
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    other_kind.write_bytes(generate_private_key(SECP256R1()).private_bytes(*pem, serialization.NoEncryption()))

    with pytest.raises(InvalidKeys, match=r"ec\.pem"):
        read_keys([other_kind])
    with pytest.raises(InvalidKeys, match=r"missing\.pem"):
        read_keys([tmp_path / "missing.pem"])
    with pytest.raises(InvalidKeys):
        public_keys({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "short"}]})
