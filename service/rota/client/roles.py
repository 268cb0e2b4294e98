"""The role of a member in its kind of group: its metadata, its assigning as leader, the meaning of a share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from rota.membership import Assigned, JoinedAsLeader
from rota.protocol import messages
from rota.protocol.messages import JoinedMember, OffsetToCommit
from rota.types.registry import SERVER_PREFIX

Share = TypeVar("Share")

Assignments: TypeAlias = "Mapping[str, bytes] | Awaitable[Mapping[str, bytes]]"


@dataclass(frozen=True, slots=True)
class Generation:
    """What a leader assigns: the members, with their metadata for the protocol that the group chose."""

    generation_id: int
    protocol_name: str
    members: Sequence[JoinedMember]


Assign: TypeAlias = Callable[[Generation], Assignments]
"""`assign(generation)` returns the assignment of each member by member id. All members get the text of an exception.

A plain function runs on the event loop: one that takes longer than a moment should be async and use a thread.
"""

Protocols: TypeAlias = "Mapping[str, bytes] | Callable[[bytes | None, int], Mapping[str, bytes]]"
"""Metadata by protocol name, the preferred one first; or `protocols(held, generation_id)`, a plain function that
returns it, called before each join with the assignment that this member holds, or held last, since that generation.
"""

Without: TypeAlias = Callable[[bytes, bytes], bytes]
"""`without(share, other)`: what of an assignment is not in the other one; empty if nothing is."""


class Role(Protocol[Share]):
    """The kind of a group. A share that is nothing must be false."""

    @property
    def is_cooperative(self) -> bool:
        """Whether members hold on to their shares while they join (KIP-429); their metadata names them then."""

    @property
    def hands_over(self) -> bool:
        """Whether the share that was read last asks this member to join again, even where it revokes nothing."""

    def protocols(self, held: Share | None, generation_id: int) -> tuple[messages.Protocol, ...]:
        """What to say of a member when it joins, that holds this since `generation_id`. The preferred one first."""

    def assign(self, generation: JoinedAsLeader) -> Assignments:
        """The assignment of all members, made by the leader."""

    def read(self, assigned: Assigned) -> Share:
        """What an assignment means to the user."""

    def without(self, share: Share, other: Share) -> Share:
        """What of `share` is not in `other`."""

    def concerned(self, held: Share | None, offsets: Sequence[OffsetToCommit]) -> Share:
        """The part of its share that a member must still hold to commit these offsets."""

    def unwanted(self, held: Share) -> Share:
        """The part of its share that a member must revoke before it joins again, because it will lose it."""


@dataclass(frozen=True, slots=True)
class OpaqueRole:
    """Assignments are bytes that only the user understands.

    With `split`, members hold on to what they keep while they join (KIP-429); else an assignment is given up as a whole
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
    def is_cooperative(self) -> bool:
        return self.split is not None

    @property
    def hands_over(self) -> bool:
        return False

    def protocols(self, held: bytes | None, generation_id: int) -> tuple[messages.Protocol, ...]:
        listed = self.listed(held, generation_id) if callable(self.listed) else self.listed
        return tuple(messages.Protocol(name, metadata) for name, metadata in listed.items())

    def assign(self, generation: JoinedAsLeader) -> Assignments:
        if self.assign_by is None:
            raise RuntimeError(f"the server should have assigned by {generation.protocol_name!r}")
        return self.assign_by(Generation(generation.generation_id, generation.protocol_name, generation.members))

    def read(self, assigned: Assigned) -> bytes:
        return assigned.assignment

    def without(self, share: bytes, other: bytes) -> bytes:
        if self.split is not None:
            return self.split(share, other)
        return share if share != other else b""

    def concerned(self, held: bytes | None, offsets: Sequence[OffsetToCommit]) -> bytes:  # noqa: ARG002
        return held or b""

    def unwanted(self, held: bytes) -> bytes:  # noqa: ARG002
        return b""
