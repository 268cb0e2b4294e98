"""The role of a member in its kind of group: its metadata, its assignment as leader, the meaning of a share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from rota.core.membership import Assigned, JoinedAsLeader
from rota.core.types.registry import SERVER_PREFIX
from rota.protocol import messages
from rota.protocol.messages import JoinedMember, OffsetToCommit

Share = TypeVar("Share")

Assignments: TypeAlias = "Mapping[str, bytes] | Awaitable[Mapping[str, bytes]]"


@dataclass(frozen=True, slots=True)
class Generation:
    """The input of a leader's assignment: the members, with their metadata for the chosen protocol."""

    generation_id: int
    protocol_name: str
    members: Sequence[JoinedMember]


Assign: TypeAlias = Callable[[Generation], Assignments]
"""`assign(generation)` returns the assignment of each member by member id. The text of an exception is sent to all
members.

A plain function runs on the event loop: a slow one should be async and use a thread.
"""

Protocols: TypeAlias = "Mapping[str, bytes] | Callable[[bytes | None, int], Mapping[str, bytes]]"
"""Metadata by protocol name, the preferred one first; or `protocols(held, generation_id)`, a plain function that
returns it, called before each join with the current or last assignment and the generation in which it was assigned.
"""

Without: TypeAlias = Callable[[bytes, bytes], bytes]
"""`without(share, other)` returns the part of an assignment that is not in the other one; it may be empty."""


class Role(ABC, Generic[Share]):
    """The kind of a group. An empty share must be false; these defaults are for shares that are tuples."""

    is_cooperative: bool
    """Whether members keep their shares while they join (KIP-429); their metadata then lists them."""
    hands_over = False
    """Whether the last share asks this member to join again, even if it revokes no part."""

    @abstractmethod
    def protocols(self, held: Share | None, generation_id: int) -> tuple[messages.Protocol, ...]:
        """Return the metadata for a join by protocol, the preferred one first; the member holds `held` since
        `generation_id`.
        """

    def assign(self, generation: JoinedAsLeader) -> Assignments:
        """Return the assignment of all members, as the leader; by default the server assigns."""
        raise RuntimeError(f"the server should have assigned by {generation.protocol_name!r}")

    @abstractmethod
    def read(self, assigned: Assigned) -> Share:
        """Convert an assignment to the user's share."""

    def without(self, share: Any, other: Any) -> Any:
        """Return the part of `share` that is not in `other`."""
        taken = frozenset(other)
        return tuple(each for each in share if each not in taken)

    def concerned(self, held: Any, offsets: Sequence[OffsetToCommit]) -> Any:  # noqa: ARG002
        """Return the part of its share that a member must still hold to commit these offsets."""
        return held or ()

    def unwanted(self, held: Share) -> Any:  # noqa: ARG002
        """Return the part of its share that a member must revoke before it joins again, because it will lose it."""
        return ()


@dataclass(frozen=True)
class OpaqueRole(Role[bytes]):
    """The role of members whose assignments are bytes that only the user understands.

    With `split`, members keep the unchanged part while they join (KIP-429); otherwise they revoke the whole assignment
    at each rebalance.
    """

    listed: Protocols
    assign_by: Assign | None = None
    split: Without | None = None

    def __post_init__(self) -> None:
        names = [each.name for each in self.protocols(None, -1)]
        by_members = [name for name in names if not name.startswith(SERVER_PREFIX)]
        if by_members and self.assign_by is None:
            raise ValueError(f"`assign` is missing: the server does not assign by {', '.join(by_members)}")

    @property
    def is_cooperative(self) -> bool:  # type: ignore[override]
        return self.split is not None

    def protocols(self, held: bytes | None, generation_id: int) -> tuple[messages.Protocol, ...]:
        listed = self.listed(held, generation_id) if callable(self.listed) else self.listed
        return tuple(messages.Protocol(name, metadata) for name, metadata in listed.items())

    def assign(self, generation: JoinedAsLeader) -> Assignments:
        if self.assign_by is None:
            return super().assign(generation)
        return self.assign_by(Generation(generation.generation_id, generation.protocol_name, generation.members))

    def read(self, assigned: Assigned) -> bytes:
        return assigned.assignment

    def without(self, share: bytes, other: bytes) -> bytes:
        if self.split is not None:
            return self.split(share, other)
        return share if share != other else b""

    def concerned(self, held: bytes | None, offsets: Sequence[OffsetToCommit]) -> bytes:  # noqa: ARG002
        return held or b""
