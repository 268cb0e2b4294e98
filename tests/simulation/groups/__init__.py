"""Users' programs over the SDK: consumers, pools, workers, elections, members and permits.

They run against the replicas of a world, under its faults and their own. After the faults end, every partition has its
holder, every election its term and every permit a holder.

    world, violations = run_program_seed(4711)
    assert not violations
"""
