"""What one replica decides: pure, driven by `rota.runtime` in production and by `rota.testing` under the simulator.

As etcd's `RawNode` stands between raft's state machine and its users' I/O, so these rooms stand between `rota.group`
and the event loop. Each step takes an input with the time of it and returns a `Ready`: what the shell has to carry out.
"""
