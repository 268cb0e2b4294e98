"""Runs a program for as long as a group grants it: `rota lead` and `rota work`, in which no process outlives its grant.

    rota lead ── the wrapper: the member of the group; tells the guardian of every renewal
      └─ guardian: the parent of the command; holds the deadline, so that it needs no other process to act at it
           └─ the command, in a process group of its own, with all that it has started

Either of the two ends everything when the other is gone or does not move. `guardian.py` says how.
"""
