"""Hostile fencing tokens: whatever the text is, its verification raises `InvalidToken` or returns a signed token."""

from __future__ import annotations

import json
import sys
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.fencing.errors import InvalidToken
from rota.fencing.keys import KeyRing, new_key, read_keys
from rota.fencing.tokens import Fence, FencingToken, sign, verify
from rota.protocol.fencing_token import fencing_token

NOW = 1_700_000_000
TOKEN = FencingToken("default", "billing", 7, "writer-1", True, NOW, NOW + 60, fencing_token(7), "writer")
FEW = settings(max_examples=60, derandomize=True, deadline=None)
BEYOND = sys.getrecursionlimit() + 1_000
NESTED = (
    b"[" * 5_000,
    b"[" * BEYOND + b"]" * BEYOND,
    b'{"kid":' * BEYOND + b"0" + b"}" * BEYOND,
    b'{"alg":"EdDSA","typ":"rota-fence+jwt","kid":' + b"[" * 900 + b"]" * 900 + b"}",
)
LARGE = (
    b'{"kid":"' + b"x" * 2**22 + b'"}',
    b'{"kid":' + b"9" * 5_000 + b"}",
    b" " * 2**22,
)


def base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "alg": st.just("EdDSA") | JSON_VALUES,
        "typ": st.just("rota-fence+jwt") | JSON_VALUES,
        "kid": JSON_VALUES,
        "crit": JSON_VALUES,
    },
)
SEGMENTS = st.binary(max_size=60).map(base64url) | st.text(max_size=40) | JSON_VALUES.map(lambda v: segment(v))


@pytest.fixture(scope="module")
def key_pairs(tmp_path_factory: pytest.TempPathFactory) -> KeyRing:
    path = tmp_path_factory.mktemp("keys") / "key.pem"
    path.write_bytes(new_key())
    return read_keys([path])


def segment(value: Any) -> str:
    return base64url(json.dumps(value).encode())


@pytest.mark.parametrize("hostile", [*NESTED, *LARGE], ids=range(len(NESTED) + len(LARGE)))
@pytest.mark.parametrize("place", [0, 1, 2])
def test_deep_and_large_parts_are_invalid_tokens(key_pairs: KeyRing, hostile: bytes, place: int) -> None:
    parts = sign(TOKEN, key_pairs).split(".")
    parts[place] = base64url(hostile)

    with pytest.raises(InvalidToken):
        verify(".".join(parts), key_pairs.public, now=NOW)
    with pytest.raises(InvalidToken):
        Fence(lambda: key_pairs.public, clock=lambda: NOW).admit(".".join(parts))


@FEW
@given(text=st.text(alphabet=st.characters(), max_size=200))
def test_any_text_is_an_invalid_token(key_pairs: KeyRing, text: str) -> None:
    with pytest.raises(InvalidToken):
        verify(text, key_pairs.public, now=NOW)


@FEW
@given(parts=st.tuples(HEADERS.map(segment) | SEGMENTS, SEGMENTS, SEGMENTS))
def test_any_three_parts_are_an_invalid_token(key_pairs: KeyRing, parts: tuple[str, str, str]) -> None:
    with pytest.raises(InvalidToken):
        verify(".".join(parts), key_pairs.public, now=NOW)


@FEW
@given(claims=JSON_VALUES)
def test_signed_claims_of_any_shape_are_an_invalid_token(key_pairs: KeyRing, claims: Any) -> None:
    """A key that signs other things as well, as an operator may have it."""
    header = {"alg": "EdDSA", "typ": "rota-fence+jwt", "kid": key_pairs.signing_id}
    signed = f"{segment(header)}.{segment(claims)}"
    text = f"{signed}.{base64url(key_pairs.signing.sign(signed.encode('ascii')))}"

    with pytest.raises(InvalidToken):
        verify(text, key_pairs.public, now=NOW)


@pytest.mark.parametrize(
    "odd", [{"exp": -(10**400)}, {"exp": 1.5}, {"generation_id": "7"}, {"generation_id": None}, {"fencing_token": [1]}]
)
def test_signed_numbers_that_are_none_are_an_invalid_token(key_pairs: KeyRing, odd: dict[str, Any]) -> None:
    header = {"alg": "EdDSA", "typ": "rota-fence+jwt", "kid": key_pairs.signing_id}
    claims = {"namespace": "n", "group_id": "g", "generation_id": 1, "sub": "a", "is_leader": True, "iss": "rota"}
    signed = f"{segment(header)}.{segment({**claims, 'iat': 1, 'exp': NOW + 60, **odd})}"

    with pytest.raises(InvalidToken):
        verify(f"{signed}.{base64url(key_pairs.signing.sign(signed.encode('ascii')))}", key_pairs.public, now=NOW)
