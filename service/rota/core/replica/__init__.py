"""What one replica decides: pure, driven by `rota.server.runtime`, in production and in the simulator.

As etcd's `RawNode` stands between raft's state machine and its users' I/O, this room stands between `rota.core.group`
and the event loop. Nothing here waits, reads a clock or draws a number: a step gets its input and the time.

What a replica may promise rests on four rules. The rest of this package is how they are kept.

1. *One writer.* A shard is a sequence of decisions. The store gives it to one replica at a time, by a lease and an
   epoch (`leases.py`), and each append carries the epoch: a former owner's append is refused, however late it is. The
   owner stops answering before its lease can be over by the store's clock, since it counts the lease from before it
   sent the request. Other replicas claim a shard only after the lease, by their own clocks as well where the store's
   was set. Which shards are due to which replica (`leases.py`) is a matter of balance, never of safety.
2. *Durable first.* `owned_shard.py` decides in memory at once, in order, and holds each answer back until the store has
   the decision and all before it that a new owner has to know. The loop puts decisions that wait into one
   transaction. Where the outcome of an append is unknown, the memory may be ahead of the store: the shard is dropped,
   and loaded again under a new epoch. So an answer is never taken back, and a decision without an answer may or may not
   have happened: clients ask again.
3. *Floors.* A store that goes back to an earlier state, as a restored backup does, would grant epochs and generations
   once more. `going_back.py` compares each answer of the store with what this replica knew when it asked, and raises
   floors in the store before anything is claimed: no fencing token is given twice.
4. *Silence is not death.* A member expires by what its owner has received, and where sessions are shared also by what
   any other replica has (`rota.server.runtime.sessions`). A new owner gives each member at least what the former one
   had promised by the heartbeats that it answered. A pause of this process gives time back to all members
   (`rota.server.runtime.clock`).

Calls for a shard elsewhere are forwarded (`forwarding.py`: why a retry is safe), as are lists, which are put together
from all shards. Shares that the server computes wait for the topics that they need (`assigning.py`).

Two forms carry decisions out. `OwnedShard` returns a `Ready`: what to append, answer, time and ask, each with what must
happen before and after. What consists of several round trips is a generator of steps (`leases.py`), to which the shell
sends each answer with the time at which it came (ADR 37).
"""
