"""What a round of leases has its shell do, one step at a time: see `rota.replica.leases`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rota.group.rows import ShardImage
from rota.group.shard import Lost
from rota.protocol.errors import ErrorCode
from rota.replica.going_back import LostFact, Setback
from rota.replica.owned_shard import Now, OwnedShard
from rota.replica.ports import Floor, ShardClaim, ShardOwner

Loaded: TypeAlias = tuple[ShardClaim, ShardImage]
"""A claim, and the shard's rows after it."""


@dataclass(frozen=True, slots=True)
class ReadOwners:
    """Read the owners of all shards from the store, then call `KnownOwners.update`."""


@dataclass(frozen=True, slots=True)
class Register:
    """Register this replica for as long as a lease; answered with all that are registered."""


@dataclass(frozen=True, slots=True)
class AskOwners:
    """Ask these former owners whether they hold the shard in that epoch, with a lease that is not over; answered with
    the shards that they say they do. Best effort: an owner that does not answer within a moment holds none.
    """

    owners: Sequence[ShardOwner]


@dataclass(frozen=True, slots=True)
class StoreCopied:
    """The owners of these shards renew their leases in another store, of which this one is a copy: report it."""

    owners: Sequence[ShardOwner]


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim these shards; answered with the claims that were made. A lease counts from BEFORE this is sent."""

    shard_ids: Sequence[int]
    known_epochs: Mapping[int, int]
    """See `ShardStore.claim`."""


@dataclass(frozen=True, slots=True)
class Load:
    """Read the rows of these shards, AFTER they were claimed; answered with an image for each, in order.

    None for a shard of which the rows mean nothing to this release: report it.
    """

    claims: Sequence[ShardClaim]
    lease_until_ms: int
    """After this it is of no use, and the other leases wait for it."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Make an `OwnedShard` of each, and `install` it. Where that raises, report it, and serve the others."""

    loaded: Sequence[Loaded]
    lease_until_ms: int
    lost: Mapping[int, Lost]
    """For `OwnedShard.load`, by shard id."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Prolong these leases; answered with a `Renewal` of each that is still ours."""

    claims: Sequence[ShardClaim]


@dataclass(frozen=True, slots=True)
class WentBack:
    """The store went back to an earlier state: report it. All shards are given up after this."""

    setbacks: Sequence[Setback]


@dataclass(frozen=True, slots=True)
class RaiseFloors:
    """Write these floors, by shard id. BEFORE the shards are claimed again."""

    floors: Mapping[int, Floor]


@dataclass(frozen=True, slots=True)
class ReportLost:
    """Report what this replica remembers and the store has lost."""

    facts: Sequence[LostFact]


@dataclass(frozen=True, slots=True)
class RaiseGenerations:
    """Call `OwnedShard.raise_generations`: another replica has raised the floor of this shard."""

    owned: OwnedShard
    floor: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Drop a shard because its memory cannot be trusted, or may not be used; it is claimed and loaded again."""

    owned: OwnedShard
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Have these shards decide nothing more, and what they have decided become durable, for as long as that is worth
    waiting for. BEFORE they are dropped.
    """

    shards: Sequence[OwnedShard]
    reason: str


@dataclass(frozen=True, slots=True)
class DropClosed:
    """Drop a shard that was closed; see `OwnedShard.drop`."""

    owned: OwnedShard
    reason: str
    code: ErrorCode
    undecided: bool


@dataclass(frozen=True, slots=True)
class Release:
    """End these leases now. AFTER the shards were dropped: another replica may claim them at once."""

    claims: Sequence[ShardClaim]
    deregisters: bool = False
    """End the registration, too."""


@dataclass(frozen=True, slots=True)
class NotifyPeers:
    """Have the other replicas begin a round: shards have become free, or this replica has started."""


Do: TypeAlias = (
    ReadOwners
    | Register
    | AskOwners
    | StoreCopied
    | Claim
    | Load
    | Serve
    | Renew
    | WentBack
    | RaiseFloors
    | ReportLost
    | RaiseGenerations
    | GiveUp
    | Close
    | DropClosed
    | Release
    | NotifyPeers
)
Steps: TypeAlias = Generator[Do, tuple[Any, Now], None]
"""Each step is sent its answer, None where it has none, and the time then."""
