"""What a group is for, from a member's point of view: what it says of itself, how it leads, what a share means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from rota.membership import Assigned, JoinedAsLeader
from rota.protocol import messages
from rota.protocol.messages import JoinedMember, OffsetToCommit

Share = TypeVar("Share")

Assignments: TypeAlias = "Mapping[str, bytes] | Awaitable[Mapping[str, bytes]]"

Assign: TypeAlias = Callable[[Sequence[JoinedMember], int], Assignments]
"""`assign(members, generation_id)` returns everybody's assignment by member id. What it raises, all members learn.

A plain function runs on the event loop: one that takes longer than a moment should be async and use a thread.
"""


class Role(Protocol[Share]):
    """The kind of a group. A share that is nothing must be false."""

    @property
    def is_cooperative(self) -> bool:
        """Whether members hold on to their shares while they join (KIP-429); their metadata names them then."""

    def protocols(self, held: Share | None, generation_id: int) -> tuple[messages.Protocol, ...]:
        """What to say of a member when it joins, that holds this since `generation_id`. The preferred one first."""

    def assign(self, generation: JoinedAsLeader) -> Assignments:
        """Everybody's assignment, for the member that leads."""

    def read(self, assigned: Assigned) -> Share:
        """What an assignment means to the user."""

    def without(self, share: Share, other: Share) -> Share:
        """What of `share` is not in `other`."""

    def concerned(self, held: Share | None, offsets: Sequence[OffsetToCommit]) -> Share:
        """What a member must still hold, of what it holds, for these offsets to be its own to commit."""

    def unwanted(self, held: Share) -> Share:
        """What a member holds that it must give up before it joins again: nobody will leave it that."""


@dataclass(frozen=True, slots=True)
class OpaqueRole:
    """A share is bytes that only the user understands, so it is given up as a whole at each rebalance."""

    listed: tuple[messages.Protocol, ...]
    assign_by: Assign

    @property
    def is_cooperative(self) -> bool:
        return False

    def protocols(self, held: Any, generation_id: int) -> tuple[messages.Protocol, ...]:  # noqa: ARG002
        return self.listed

    def assign(self, generation: JoinedAsLeader) -> Assignments:
        return self.assign_by(generation.members, generation.generation_id)

    def read(self, assigned: Assigned) -> bytes:
        return assigned.assignment

    def without(self, share: bytes, other: bytes) -> bytes:
        return share if share != other else b""

    def concerned(self, held: bytes | None, offsets: Sequence[OffsetToCommit]) -> bytes:  # noqa: ARG002
        return held or b""

    def unwanted(self, held: bytes) -> bytes:  # noqa: ARG002
        return b""
