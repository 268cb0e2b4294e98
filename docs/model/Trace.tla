-------------------------------- MODULE Trace --------------------------------
(***************************************************************************)
(* A run that was recorded: the events of one group of the simulator, one  *)
(* after the other. TLC checks the rules of Journal.tla on each step.      *)
(*                                                                         *)
(* tests/model/trace.py writes the module TraceEvents from a world.        *)
(***************************************************************************)
EXTENDS Journal, TraceEvents

VARIABLE next  \* The position of the event that happens next.

Zeros == [p \in TracePartitions |-> 0]

Init == JournalInit(Zeros, Zeros) /\ next = 1

Next ==
  /\ next <= Len(TraceOfWorld)
  /\ next' = next + 1
  /\ event' = TraceOfWorld[next]
  /\ Effect(event')

Spec == Init /\ [][Next]_<<journalVars, next>>
=============================================================================
