"""What a seed draws before its world begins: the kind of group, its members, and which faults there are."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.simulation.groups import own_strategies

CONSUMERS, CONNECT, ELECTION, MEMBERS = "consumers", "connect", "election", "members"
PERMITS = "permits"

FEATURES = (
    "cuts",  # links that are cut, for longer than a session, too
    "weather",  # requests and answers that are lost, slow, repeated
    "refusals",  # errors of a coordinator that is not available, or asks for patience
    "foreign",  # answers of other HTTP servers
    "kills",  # processes that end without a word
    "restarts",  # processes that are ended in order and started again
    "replicas",  # replicas, their store and their network fail
    "topics",  # topics are created, grow and are deleted
    "undone",  # a change of topics is changed back at once
    "rejoin",  # programs ask for rebalances
    "aside",  # programs step aside and come back
    "resign",  # terms are resigned from, by their bodies too
    "raise",  # callbacks and bodies raise
    "texts",  # reasons and exceptions of 10 kB
    "assign",  # the leader's assigning takes long, or raises
    "slow",  # callbacks take their time
    "idle",  # no progress for longer than max_processing_interval
    "soon",  # commits in the background
    "poison",  # offsets that the coordinator rejects
    "subscribe",  # programs subscribe to other topics
    "returns",  # work returns
    "stubborn",  # work that does not end at once
    "nested",  # an election within a term of another
    "stall",  # the process stands still
    "run",  # run() within the block
)

SEAMS = (
    "task groups",  # work commits, and looks at what it holds, in tasks of a group
    "hangs",  # the coordinator is silent for all programs at once
    "waits",  # waits for a permit that are cancelled
    "retry",  # pools try shards again whose work raises
)
"""What is drawn apart from the others, so that worlds without it are the same as before."""
LONG_WORLDS = 0.02
"""How often a world lasts for minutes."""
RARE = {"foreign": 0.12, "stall": 0.1, "raise": 0.25}
"""How often a feature is drawn, where that is less often than the others."""

OWN_STRATEGIES = 0.1
"""How often consumers use strategies of the user's own, or several by topic."""
PERMITS_FOR_ELECTIONS = 0.4
"""How often candidates hold permits instead of leading."""
FREEZES = 0.15
"""How often groups are frozen now and then."""
QUARANTINES = 0.2
"""How often consumers and Connect workers have a quarantine."""
PRIORITIES = 0.6
"""How often candidates have priorities."""
CONNECT_UPGRADES = 0.5
"""How often workers of connectors are eager, or change their protocol in rolling restarts."""
CONNECTED_TOPICS = 0.6
"""How often the connectors of the others are topics."""
OWN_COOPERATIVE = 0.3
"""How often members of a kind of the user's own are cooperative."""

COPIES = (("redundant(n=2)",), ("cooperative-redundant(n=2)",), ("server:redundant(n=2)",))
"""The forms of the strategy with copies."""

STRATEGIES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("range",),),
    (("roundrobin",),),
    (("sticky",),),
    (("cooperative-sticky",),),
    (("cooperative-sticky",),),
    (("cooperative-sticky", "range"),),
    (("range",), ("cooperative-sticky", "range"), ("cooperative-sticky",)),
    (("range",), ("cooperative-sticky", "range"), ("cooperative-sticky",)),
    (("sticky",), ("cooperative-sticky", "sticky"), ("cooperative-sticky",)),
    (("weighted",),),
    (COPIES[0],),
    (("copartitioned",),),
    (("server:sticky",),),
    (("server:sticky",),),
)
"""Lists of strategies, each with its replacement in a rolling restart."""

CONNECT_STAGES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("eager",),),
    (("incremental", "eager"), ("eager",)),
    (("eager",), ("incremental", "eager"), ("incremental",)),
    (("eager",), ("incremental", "eager"), ("incremental",)),
    (("incremental",), ("incremental", "eager"), ("eager",)),
)
"""The same for protocols of workers of connectors: also the way back."""


@dataclass(slots=True)
class Plan:
    """One world, before anything has happened."""

    kind: str
    slots: int
    session_ms: int
    rebalance_ms: int
    stages: tuple[tuple[str, ...], ...]
    topics: dict[str, int]
    counts: str
    """Where partition counts come from: `registered`, `pattern`, `mapping` or `function`."""
    pools: float
    static: float
    http: float
    threads: float
    """Share of the programs that use the sync twin."""
    faults_s: float
    pace_s: float
    """How long it is quiet between two faults, on average."""
    cooperative_members: bool = False
    """Members of a kind of the user's own keep what they hold while they join."""
    permits: tuple[int, ...] = ()
    """How many permits members ask for: each one of these numbers, which are mostly one."""
    freezes: bool = False
    quarantines: bool = False
    priorities: tuple[int, ...] = ()
    """The priorities of candidates; empty where they have none."""
    features: tuple[str, ...] = ()
    loss: float = 0.0
    """The share of messages that the network loses, delays, or delivers twice."""
    refused: float = 0.0
    """The share of requests that are refused on their way."""

    connects_topics: bool = False
    """Connectors are topics, which the server assigns."""

    @property
    def follows_topics(self) -> bool:
        """Whether the coordinator's topics are the work of the group."""
        return self.connects_topics or (self.kind == CONSUMERS and self.counts != "mapping")

    def has(self, feature: str) -> bool:
        return feature in self.features


def draw_plan(seed: int, rng: Random) -> Plan:
    """Every choice of the seed that is made beforehand."""
    plan = _drawn(rng)
    bad = rng.choice((0.02, 0.05, 0.15))
    plan.loss, plan.refused = bad * plan.has("weather"), bad * plan.has("refusals")
    of_own = Random(f"own strategies {seed}")
    if plan.kind == CONSUMERS and of_own.random() < OWN_STRATEGIES:
        plan.stages = of_own.choice(own_strategies.STAGES)
    of_connect = Random(f"connect {seed}")
    if plan.kind == CONNECT:
        is_upgraded = of_connect.random() < CONNECT_UPGRADES
        plan.stages = of_connect.choice(CONNECT_STAGES) if is_upgraded else (("incremental",),)
        plan.connects_topics = not is_upgraded and of_connect.random() < CONNECTED_TOPICS
    if plan.stages == (COPIES[0],):
        plan.stages = (COPIES[seed % len(COPIES)],)
    plan.cooperative_members = plan.kind == MEMBERS and plan.static == 0.0 and of_own.random() < OWN_COOPERATIVE
    of_permits = Random(f"permits {seed}")
    if plan.kind == ELECTION and of_permits.random() < PERMITS_FOR_ELECTIONS:
        plan.kind = PERMITS
        plan.permits = of_permits.choice(((1,), (1,), (2,), (2,), (3,), (1, 2), (2, 3)))
    plan.freezes = Random(f"freezes {seed}").random() < FREEZES
    plan.features += ("topics",) if plan.freezes else ()
    plan.quarantines = plan.kind in (CONSUMERS, CONNECT) and Random(f"quarantines {seed}").random() < QUARANTINES
    of_priorities = Random(f"priorities {seed}")
    if plan.kind == ELECTION and of_priorities.random() < PRIORITIES:
        plan.priorities = of_priorities.choice(((0, 1), (0, 0, 7), (1, 2, 3)))
    of_seams = Random(f"seams {seed}")
    plan.features += tuple(feature for feature in SEAMS if of_seams.random() < 0.2)
    if of_seams.random() < LONG_WORLDS:
        plan.faults_s = of_seams.uniform(60, 180)
    return plan


def _drawn(rng: Random) -> Plan:
    kind = rng.choice((CONSUMERS, CONSUMERS, CONSUMERS, CONSUMERS, ELECTION, ELECTION, CONNECT, CONNECT, MEMBERS))
    features = tuple(feature for feature in FEATURES if rng.random() < RARE.get(feature, 0.3))
    http = rng.choice((0.5, 1.0)) if "foreign" in features else rng.choice((0.0,) * 15 + (0.5,))
    return Plan(
        kind,
        slots=rng.choice((1, 2, 2, 3, 3, 4)),
        session_ms=rng.choice((1_000, 1_500, 2_000, 3_000)),
        rebalance_ms=rng.choice((2_000, 4_000, 60_000)),
        stages=rng.choice(STRATEGIES),
        topics={f"t{number}": rng.randint(1, 6) for number in range(rng.randint(1, 3))},
        counts=rng.choice(("registered", "registered", "registered", "pattern", "mapping", "function")),
        pools=rng.choice((0.0, 0.0, 0.5, 1.0)),
        static=rng.choice((0.0, 0.0, 0.5, 1.0)),
        http=http,
        threads=rng.choice((0.0,) * 14 + (0.5, 1.0)),
        faults_s=rng.uniform(4, 10),
        pace_s=rng.choice((0.4, 0.8, 1.6)),
        features=features,
    )
