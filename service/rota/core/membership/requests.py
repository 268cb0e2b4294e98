"""The requests of one member, built from its settings and from where it stands."""

from __future__ import annotations

from dataclasses import dataclass

from rota.core.membership.settings import MembershipSettings
from rota.protocol.messages import NO_GENERATION, Heartbeat, JoinGroup, LeaveGroup, LeavingMember, Protocol, SyncGroup
from rota.protocol.texts import ERROR_MAX_CHARS, shortened

MembershipRequest = JoinGroup | SyncGroup | Heartbeat | LeaveGroup


@dataclass(frozen=True, slots=True)
class Planned:
    """What to send next, not before `send_at_ms`; without an answer after `timeout_ms` it has failed."""

    request: MembershipRequest
    send_at_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class RequestFactory:
    """Fills in what every request of a member carries."""

    settings: MembershipSettings

    def join(
        self, member_id: str, protocols: tuple[Protocol, ...], reason: str, last_generation_id: int = NO_GENERATION
    ) -> JoinGroup:
        settings = self.settings
        return JoinGroup(
            namespace=settings.namespace,
            group_id=settings.group_id,
            protocol_type=settings.protocol_type,
            protocols=protocols,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            member_id=member_id,
            group_instance_id=settings.group_instance_id,
            client_id=settings.client_id,
            reason=shortened(reason),
            wait_ms=settings.poll_ms,
            last_generation_id=last_generation_id,
        )

    def sync(
        self,
        member_id: str,
        generation_id: int,
        protocol_name: str,
        assignments: tuple[tuple[str, bytes], ...],
        leader_error: str | None,
    ) -> SyncGroup:
        settings = self.settings
        return SyncGroup(
            namespace=settings.namespace,
            group_id=settings.group_id,
            member_id=member_id,
            generation_id=generation_id,
            group_instance_id=settings.group_instance_id,
            protocol_type=settings.protocol_type,
            protocol_name=protocol_name or None,
            assignments=assignments,
            leader_error=None if leader_error is None else shortened(leader_error, ERROR_MAX_CHARS),
            wait_ms=settings.poll_ms,
        )

    def heartbeat(self, member_id: str, generation_id: int, wait_ms: int) -> Heartbeat:
        settings = self.settings
        return Heartbeat(
            namespace=settings.namespace,
            group_id=settings.group_id,
            member_id=member_id,
            generation_id=generation_id,
            group_instance_id=settings.group_instance_id,
            wait_ms=wait_ms,
        )

    def leave(self, member_id: str, reason: str, failed_unit: str) -> LeaveGroup:
        settings = self.settings
        leaving = LeavingMember(member_id, settings.group_instance_id, shortened(reason), failed_unit=failed_unit)
        return LeaveGroup(settings.namespace, settings.group_id, (leaving,))
