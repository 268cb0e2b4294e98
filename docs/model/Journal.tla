------------------------------ MODULE Journal ------------------------------
(***************************************************************************)
(* The promises: what the store holds, and which events may follow.        *)
(*                                                                         *)
(* An event is a claim of a shard, a batch of journal lines that lands, an *)
(* answer that a replica releases, an assignment that a leader sends, an   *)
(* outcome that stays unknown, or a write to a resource that checks        *)
(* tokens. Each rule has the name that the simulator gives it              *)
(* (tests/simulation/checks.py) and is a property of single steps.         *)
(*                                                                         *)
(* Rota.tla (the protocol) and Trace.tla (a recorded run of the simulator) *)
(* both extend this module, and TLC checks the same rules on both.         *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

VARIABLES
  store,    \* The shard in the store: claimed epoch, epoch and number of the last line, facts of the group.
  sent,     \* Assignments that members have sent, with the generation for which each was sent.
  rejected, \* Commits that were rejected.
  unknown,  \* Epochs in which an owner gave up waiting for the outcome of an append.
  fence,    \* The last token that the resource accepted, for each partition.
  event     \* What happened in this step. It decides nothing, and is no part of a state's identity (VIEW).

journalVars == <<store, sent, rejected, unknown, fence, event>>

Quiet == [kind |-> "none"]

-----------------------------------------------------------------------------
(* The facts of a group, as tests/simulation/ledger.py folds them.         *)

NoFacts(offsets) ==
  [gen |-> 0, state |-> "Empty", members |-> {}, settled |-> {}, settledState |-> "none", leader |-> "none",
   claims |-> <<>>, assignment |-> <<>>, offsets |-> offsets, landed |-> {}]

\* A new owner forgets a join phase that was under way: what counts is what the rows say.
Forget(f) ==
  [f EXCEPT !.members = f.settled, !.state = IF f.settledState = "none" THEN "Empty" ELSE f.settledState]

Gone(f, m) ==
  [f EXCEPT !.members = @ \ {m},
            !.settled = @ \ {m},
            !.settledState = IF m \in f.settled THEN "Preparing" ELSE @]

Renamed(set, old, new) == {IF m = old THEN new ELSE m : m \in set}

RenamedKeys(function, old, new) ==
  [m \in Renamed(DOMAIN function, old, new) |-> IF m = new /\ old \in DOMAIN function THEN function[old] ELSE function[m]]

Replaced(f, old, new) ==
  [f EXCEPT !.members = Renamed(@, old, new),
            !.settled = Renamed(@, old, new),
            !.assignment = RenamedKeys(@, old, new),
            !.leader = IF @ = old THEN new ELSE @,
            !.settledState = IF old \in f.settled /\ @ = "Completing" THEN "Preparing" ELSE @]

Fold(f, line) ==
  CASE line.kind = "acquired"  -> Forget(f)
    [] line.kind = "started"   -> [f EXCEPT !.state = "Preparing"]
    [] line.kind = "joined"    -> [f EXCEPT !.members = @ \union {line.member}]
    [] line.kind = "gone"      -> Gone(f, line.member)
    [] line.kind = "replaced"  -> Replaced(f, line.member, line.new)
    [] line.kind = "completed" -> [f EXCEPT !.gen = line.gen, !.state = "Completing", !.leader = line.leader,
                                            !.claims = line.claims, !.settled = f.members,
                                            !.settledState = "Completing"]
    [] line.kind = "synced"    -> [f EXCEPT !.gen = line.gen, !.state = "Stable", !.assignment = line.assignment,
                                            !.settledState = "Stable"]
    [] line.kind = "failed"    -> [f EXCEPT !.settledState = "Preparing"]
    [] line.kind = "emptied"   -> [f EXCEPT !.gen = line.gen, !.state = "Empty", !.settledState = "Empty"]
    [] line.kind = "deleted"   -> [NoFacts([p \in DOMAIN f.offsets |-> 0]) EXCEPT !.gen = f.gen, !.landed = f.landed]
    [] line.kind = "committed" -> [f EXCEPT !.offsets[line.partition] = line.offset,
                                            !.landed = @ \union {line.id},
                                            !.settledState = IF @ = "none" THEN "Empty" ELSE @]
    [] line.kind = "cleared"   -> [f EXCEPT !.offsets = [p \in DOMAIN @ |-> IF p \in line.partitions THEN 0 ELSE @[p]]]
    [] OTHER                   -> f

RECURSIVE FoldAll(_, _)
FoldAll(f, lines) == IF lines = <<>> THEN f ELSE FoldAll(Fold(f, Head(lines)), Tail(lines))

\* The store after a batch. A line is kept whether or not it follows the rules: the rules are checked beside it.
Appended(s, epoch, lines) ==
  [s EXCEPT !.seq = @ + Len(lines), !.facts = FoldAll(@, lines), !.tail = epoch,
            !.start = IF epoch = s.tail THEN @ ELSE s.seq + 1]

NoStore(offsets) == [epoch |-> 0, tail |-> 0, seq |-> 0, start |-> 0, facts |-> NoFacts(offsets)]

-----------------------------------------------------------------------------
(* What an event does. *)

Effect(e) ==
  /\ store' = CASE e.kind = "claim"  -> [store EXCEPT !.epoch = e.epoch]
                [] e.kind = "append" -> Appended(store, e.epoch, e.lines)
                [] OTHER             -> store
  /\ sent' = IF e.kind = "send" THEN sent \union {[by |-> e.by, gen |-> e.gen, assignment |-> e.assignment]} ELSE sent
  /\ rejected' = IF e.kind = "answer" /\ e.call = "reject" THEN rejected \union e.ids ELSE rejected
  /\ unknown' = IF e.kind = "unknown" THEN unknown \union {e.epoch} ELSE unknown
  /\ fence' = IF e.kind = "write" /\ e.accepted THEN [fence EXCEPT ![e.partition] = e.token] ELSE fence

JournalInit(offsets, tokens) ==
  /\ store = NoStore(offsets)
  /\ sent = {}
  /\ rejected = {}
  /\ unknown = {}
  /\ fence = tokens
  /\ event = Quiet

-----------------------------------------------------------------------------
(* The rules. Each line of a batch is judged by the facts before that line. *)

EachLine(Rule(_, _)) ==
  event'.kind = "append" =>
    \A i \in 1..Len(event'.lines) : Rule(FoldAll(store.facts, SubSeq(event'.lines, 1, i - 1)), event'.lines[i])

EachAnswer(call, Rule(_)) == (event'.kind = "answer" /\ event'.call = call) => Rule(event')

\* A generation is the one before plus one.
LineS1(f, line) ==
  /\ line.kind \in {"completed", "emptied"} => line.gen = f.gen + 1
  /\ line.kind = "synced" => line.gen = f.gen + IF line.resync THEN 1 ELSE 0
  /\ line.kind = "deleted" => line.gen = f.gen

\* A generation has one leader, who is a member, and every answer names that leader.
LineS2(f, line) == line.kind = "completed" => line.leader \in f.members
AnswerS2(a) == a.gen = store.facts.gen /\ a.leader = store.facts.leader

\* A generation is exactly the members that there are, and only they receive it.
LineS3(f, line) == line.kind = "completed" => line.members = f.members
AnswerS3(a) == a.member \in store.facts.members

\* A join is answered once the join phase is over.
AnswerS4(a) == store.facts.state \in {"Completing", "Stable"}

\* An assignment is one that its leader sent for this generation, and a sync returns exactly the member's share.
SentFor(line) == IF line.resync THEN line.gen - 1 ELSE line.gen
LineS5(f, line) ==
  line.kind = "synced" =>
    \E s \in sent : /\ s.by = line.leader /\ s.gen = SentFor(line)
                    /\ \A m \in DOMAIN line.assignment : m \in DOMAIN s.assignment /\ s.assignment[m] = line.assignment[m]
AnswerS5(a) ==
  /\ store.facts.state = "Stable" /\ a.gen = store.facts.gen
  /\ a.share = IF a.member \in DOMAIN store.facts.assignment THEN store.facts.assignment[a.member] ELSE {}

\* An assignment is stored once for a generation, and comes from its leader.
LineS6(f, line) ==
  line.kind = "synced" =>
    /\ SentFor(line) = f.gen /\ line.leader = f.leader
    /\ f.state = IF line.resync THEN "Stable" ELSE "Completing"

\* A partition is assigned once in a generation.
LineS7a(f, line) ==
  line.kind = "synced" =>
    \A m, n \in DOMAIN line.assignment : m # n => line.assignment[m] \intersect line.assignment[n] = {}

\* A commit comes from a member that is in the current generation, not only in the next one, and not while the assignment is awaited.
LineS9(f, line) ==
  line.kind = "committed" =>
    IF line.by = "" THEN f.state = "Empty"
    ELSE line.by \in f.settled /\ line.gen = f.gen /\ f.state # "Completing"

\* Progress goes back only where the client had given up on the commit, or an administrator asks for it.
LineS10(f, line) ==
  (line.kind = "committed" /\ line.by # "" /\ ~line.late) => line.offset >= f.offsets[line.partition]

\* A commit takes effect once.
LineS13(f, line) == line.kind = "committed" => line.id \notin f.landed

S1 == [][EachLine(LineS1)]_journalVars
S2 == [][EachLine(LineS2) /\ EachAnswer("join", AnswerS2)]_journalVars
S3 == [][EachLine(LineS3) /\ EachAnswer("join", AnswerS3)]_journalVars
S4 == [][EachAnswer("join", AnswerS4)]_journalVars
S5 == [][EachLine(LineS5) /\ EachAnswer("sync", AnswerS5)]_journalVars
S6 == [][EachLine(LineS6)]_journalVars
S7a == [][EachLine(LineS7a)]_journalVars
S10 == [][EachLine(LineS10)]_journalVars
S13 == [][EachLine(LineS13)]_journalVars

\* The resource never accepts a token that is lower than one it accepted before.
S7b == [][\A p \in DOMAIN fence : fence'[p] >= fence[p]]_journalVars

\* ... and an acknowledged commit is in the journal.
S9 == [][EachLine(LineS9) /\ EachAnswer("commit", LAMBDA a : a.ids \subseteq store.facts.landed)]_journalVars

\* Each claim has a higher epoch, the journal's epochs never go back, and an epoch begins with its own line.
S11 == [][/\ (event'.kind = "claim" => event'.epoch > store.epoch)
          /\ (event'.kind = "append" =>
                /\ event'.epoch = store.epoch
                /\ (event'.epoch # store.tail => event'.lines[1].kind = "acquired"))]_journalVars

\* The journal has no gap.
S12 == [][event'.kind = "append" => event'.first = store.seq + 1]_journalVars

\* An answer comes from the replica that holds the newest epoch.
S15 == [][event'.kind = "answer" => event'.epoch = store.epoch]_journalVars

\* Nothing is answered that the store does not have, or that another owner has overwritten.
D1 == [][event'.kind = "answer" =>
           /\ event'.revision <= store.seq
           /\ (event'.revision >= store.start => event'.epoch = store.tail)]_journalVars

\* A rejected commit has no effect, neither before nor after the answer.
D2 == [][rejected' \intersect store'.facts.landed = {}]_journalVars

\* After an append of unknown outcome nothing more is answered in that epoch.
D3 == [][event'.kind = "answer" => event'.epoch \notin unknown]_journalVars

-----------------------------------------------------------------------------
(* Every step is an event with its effect, and nothing else changes what   *)
(* the store, the network and the resource remember.                       *)

Effects == [][event'.kind \in {"none", "claim", "append", "answer", "send", "unknown", "write"} /\ Effect(event')]_journalVars
=============================================================================
