"""The SDK: lead a group, or hold a share of its work, for as long as that is safe, and leave in order.

    async with rota.connect("http://localhost:8080") as client:
        await client.leader("billing-writer").run(write)                        # write(term), cancelled at loss
        await client.worker_pool("indexers", {"documents": 12}, index).run()    # index(shard), for each that is held

Each `run` works until SIGTERM or Ctrl-C, stops the work, and leaves the group; a program uses one of them.

`client.consumer` assigns partitions without running work, `client.connect_worker` connectors and tasks, and
`client.member` is for groups of your own kind. All of them heartbeat and rejoin in the background. Their shares end at
a local deadline (`valid_until`), always before the coordinator may assign them to another member.
"""

from rota.client.callbacks import Listener
from rota.client.client import Client, connect
from rota.client.connect_worker import ConnectWorker
from rota.client.consumer import Consumer
from rota.client.election import Election
from rota.client.errors import (
    AccessDenied,
    CoordinatorError,
    CoordinatorUnreachable,
    FencedInstanceId,
    InvalidRequest,
    LeadershipLost,
    MembershipLost,
    NotFound,
    PermitLost,
    RebalanceInProgress,
    RevisionOutOfRange,
    Throttled,
    Unavailable,
)
from rota.client.events import (
    Assigned,
    GenerationFailed,
    Lost,
    Reachable,
    RebalanceStarted,
    Rejected,
    Revoked,
    Unreachable,
)
from rota.client.member import Member
from rota.client.options import ConsumerOptions, MemberOptions, SessionOptions
from rota.client.permits import Permit, Permits
from rota.client.roles import Assign, Generation, Protocols, Without
from rota.client.tasks import FinalSignal
from rota.client.term import Term
from rota.client.transports import GroupEvent
from rota.client.worker_pool import Shard, WorkerPool
from rota.core.assignors import TopicPartition
from rota.core.assignors.work import WorkItem
from rota.core.types import TopicFacts
from rota.credentials import Credentials
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import OffsetToCommit, TopicPartitions

__all__ = [
    "AccessDenied",
    "Assign",
    "Assigned",
    "Client",
    "ConnectWorker",
    "Consumer",
    "ConsumerOptions",
    "CoordinatorError",
    "CoordinatorUnreachable",
    "Credentials",
    "Election",
    "ErrorCode",
    "FencedInstanceId",
    "FinalSignal",
    "Generation",
    "GenerationFailed",
    "GroupEvent",
    "InvalidRequest",
    "LeadershipLost",
    "Listener",
    "Lost",
    "Member",
    "MemberOptions",
    "MembershipLost",
    "NotFound",
    "OffsetToCommit",
    "Permit",
    "PermitLost",
    "Permits",
    "Protocols",
    "Reachable",
    "RebalanceInProgress",
    "RebalanceStarted",
    "Rejected",
    "RevisionOutOfRange",
    "Revoked",
    "SessionOptions",
    "Shard",
    "Term",
    "Throttled",
    "TopicFacts",
    "TopicPartition",
    "TopicPartitions",
    "Unavailable",
    "Unreachable",
    "Without",
    "WorkItem",
    "WorkerPool",
    "connect",
]
