"""Which requests need the store's word before they are decided, and their answer without it."""

from __future__ import annotations

import pytest

from rota.core.replica.owned_shard import Prerequisite, claim_to_confirm, prerequisites
from rota.protocol.messages import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    Heartbeat,
    Request,
    VerifyFence,
)
from tests.unit.replica.shards import AN_OFFSET, EPOCH, a_shard, decide

A_FENCE = VerifyFence("default", "g", 1, "m1")
OF_PROGRESS = (FetchOffsets("default", "g"), DeleteOffsets("default", "g", ()), DeleteGroup("default", "g"))


@pytest.mark.parametrize("request_", OF_PROGRESS)
def test_progress_needs_the_commits_beside_the_shard(request_: Request) -> None:
    assert prerequisites(request_, has_side_door=True, is_shared=True) == (Prerequisite.SIDE_COMMITS,)
    assert prerequisites(request_, has_side_door=False, is_shared=True) == ()


@pytest.mark.parametrize("request_", [Heartbeat("default", "g", "m1", 1), CommitOffsets("default", "g", -1, ())])
def test_other_requests_need_the_lease_alone(request_: Request) -> None:
    assert prerequisites(request_, has_side_door=True, is_shared=True) == ()


def test_the_store_confirms_what_is_durable_here() -> None:
    owned = a_shard()
    decide(owned, 1, AN_OFFSET)

    claim = claim_to_confirm(owned)

    assert (claim.shard_id, claim.epoch, claim.last_seq) == (0, EPOCH, owned.durable_seq)
    assert owned.seq > owned.durable_seq > 0
