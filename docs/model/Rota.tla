-------------------------------- MODULE Rota --------------------------------
(***************************************************************************)
(* The protocol: how replicas, members and one store keep the promises of  *)
(* Journal.tla for one group in one shard.                                 *)
(*                                                                         *)
(* Time is not modelled. Its two assumptions are guards: the store's lease *)
(* ends only after the owner has stopped (LeaseEnds), and an owner expires *)
(* a member only after that member has stopped (Expire). A pause is a step *)
(* that does not come.                                                     *)
(***************************************************************************)
EXTENDS Journal, TLC

CONSTANTS
  Replicas, Members, Partitions,
  Cooperative,  \* TRUE: members keep their partitions while they join (KIP-429). FALSE: they stop first.
  MaxGen,       \* No generation above this one is completed.
  MaxCommits,   \* How many commits the members send.
  Writes,       \* TRUE: there are writes to a resource that checks tokens.
  MaxAhead,     \* How many decisions an owner takes while the ones before are not durable.
  MaxFaults,    \* How many faults there are: crashes, lost answers, members that miss their deadline.
  Bug           \* The name of a planted bug, or "none".

VARIABLES
  own,         \* For each replica what it holds in memory of the shard; epoch 0: nothing.
  lease,       \* The replica whose lease the store still counts.
  statements,  \* Appends on their way to the store, or back.
  member,      \* For each member what it believes.
  inbox,       \* For each member the answer to the call that it waits for.
  commits,     \* Commits on their way, or held by an owner until they are durable.
  faults,      \* How many faults there have been.
  serial       \* How many commits have been sent: each has a number of its own.

vars == <<own, lease, statements, member, inbox, commits, faults, serial, journalVars>>

\* What makes two states different (VIEW), and which states are alike (SYMMETRY). Of epochs with an unknown outcome
\* only those count that a replica may still answer in.
Identity == <<own, lease, statements, member, inbox, commits, faults, serial, store, sent, rejected, fence,
              {r \in Replicas : own[r].epoch \in unknown}>>
Alike == Permutations(Replicas) \union Permutations(Members) \union Permutations(Partitions)

Nobody == "nobody"
NoClaims == [m \in Members |-> {}]
NoOffsets == [p \in Partitions |-> 0]
NotOwned ==
  [epoch |-> 0, seq |-> 0, facts |-> NoFacts(NoOffsets), joined |-> {}, claims |-> NoClaims, unsent |-> <<>>, out |-> 0,
   settled |-> 0]
Outside == [state |-> "out", gen |-> 0, holds |-> {}, share |-> {}, offsets |-> NoOffsets]
NoAnswer == [kind |-> "none"]

Init ==
  /\ JournalInit(NoOffsets, NoOffsets)
  /\ own = [r \in Replicas |-> NotOwned]
  /\ lease = Nobody
  /\ statements = {}
  /\ member = [m \in Members |-> Outside]
  /\ inbox = [m \in Members |-> NoAnswer]
  /\ commits = {}
  /\ faults = 0
  /\ serial = 0

Happens(e) == event' = e /\ Effect(e)
Silently == Happens(Quiet)
Fault == faults < MaxFaults /\ faults' = faults + 1

-----------------------------------------------------------------------------
(* A replica: memory that runs ahead of the store, one append at a time.   *)

Serves(r) == own[r].epoch > 0
Facts(r) == own[r].facts
Revision(r) == own[r].seq + own[r].out + Len(own[r].unsent)

\* Nothing waits for the lines of a join phase under way: the next owner forgets them, and members join again. They are
\* appended with a later line. So an answer shows what is durable up to `settled`, and maybe such lines after that.
Settles(line) == line.kind \notin {"joined", "started"}
IsDurable(r) == own[r].settled <= own[r].seq
MayAnswer(r) == Serves(r) /\ (IsDurable(r) \/ Bug = "answer_before_durable")
MayDecide(r) == Serves(r) /\ (IF own[r].out = 0 THEN 0 ELSE 1) + Len(own[r].unsent) <= MaxAhead

Decided(r, lines) ==
  [own[r] EXCEPT !.facts = FoldAll(@, lines), !.unsent = @ \o lines,
                 !.settled = IF \E i \in 1..Len(lines) : Settles(lines[i]) THEN Revision(r) + Len(lines) ELSE @]
Answer(r, call) ==
  [kind |-> "answer", call |-> call, epoch |-> own[r].epoch,
   revision |-> IF Bug = "answer_before_durable" THEN Revision(r) ELSE own[r].seq]

\* The answer to a commit says nothing of its effect, because the replica does not know it.
HeldBy(r) == {c \in commits : c.state = "held" /\ c.owner = r}
Dropped(r) == own' = [own EXCEPT ![r] = NotOwned] /\ commits' = commits \ HeldBy(r)
RejectHeld(r) == [Answer(r, "reject") EXCEPT !.revision = own[r].seq] @@ [ids |-> {c.id : c \in HeldBy(r)}]

ClaimedEpoch(r) == IF Bug = "reacquire_keeps_epoch" /\ store.epoch > 0 THEN store.epoch ELSE store.epoch + 1

Loaded(f) ==
  CASE Bug = "assignment_not_persisted" -> [f EXCEPT !.assignment = <<>>]
    [] Bug = "offsets_not_loaded"       -> [f EXCEPT !.offsets = NoOffsets]
    [] OTHER                            -> f

\* The store grants a lease that no other replica holds; the replica loads the rows and decides its first line.
Claim(r) ==
  /\ lease = Nobody /\ ~Serves(r)
  /\ Happens([kind |-> "claim", epoch |-> ClaimedEpoch(r)])
  /\ lease' = r
  /\ own' = [own EXCEPT ![r] = [NotOwned EXCEPT
       !.epoch = ClaimedEpoch(r), !.seq = store.seq, !.facts = Forget(Loaded(store.facts)),
       !.unsent = <<[kind |-> "acquired"]>>, !.settled = store.seq + 1]]
  /\ UNCHANGED <<statements, member, inbox, commits, faults, serial>>

\* The store granted it, but the replica never receives the answer.
ClaimUnanswered(r) ==
  /\ lease = Nobody /\ ~Serves(r) /\ Fault
  /\ Happens([kind |-> "claim", epoch |-> ClaimedEpoch(r)])
  /\ lease' = r
  /\ UNCHANGED <<own, statements, member, inbox, commits, serial>>

\* The owner counts from before it asked, so it has stopped by the time at which the store ends the lease.
LeaseEnds ==
  /\ lease # Nobody
  /\ own[lease].epoch = store.epoch => Bug = "lease_is_not_watched"
  /\ lease' = Nobody
  /\ Silently
  /\ UNCHANGED <<own, statements, member, inbox, commits, faults, serial>>

\* A crash, or the lease is over by the owner's own clock. Statements that are on their way stay there.
Drop(r) ==
  /\ Serves(r) /\ Fault
  /\ Dropped(r)
  /\ IF Bug = "unknown_is_rejected" /\ HeldBy(r) # {}
     THEN Happens(RejectHeld(r)) ELSE Silently
  /\ UNCHANGED <<lease, statements, member, inbox, serial>>

Send(r) ==
  /\ Serves(r) /\ own[r].out = 0 /\ own[r].unsent # <<>>
  /\ statements' = statements \union
       {[epoch |-> own[r].epoch, first |-> own[r].seq + 1, lines |-> own[r].unsent, by |-> r, state |-> "sent"]}
  /\ own' = [own EXCEPT ![r].out = Len(own[r].unsent), ![r].unsent = <<>>]
  /\ Silently
  /\ UNCHANGED <<lease, member, inbox, commits, faults, serial>>

IsAwaited(s) == own[s.by].epoch = s.epoch /\ own[s.by].out > 0 /\ own[s.by].seq + 1 = s.first

Accepts(s) ==
  /\ s.epoch = store.epoch \/ Bug = "no_epoch_check"
  /\ s.first = store.seq + 1 \/ Bug = "no_sequence_check"

\* The store runs a statement, however late: it lands where the epoch is current and the next number follows.
Land(s) ==
  /\ s.state = "sent"
  /\ statements' = (statements \ {s}) \union
       IF IsAwaited(s) THEN {[s EXCEPT !.state = IF Accepts(s) THEN "landed" ELSE "refused"]} ELSE {}
  /\ IF Accepts(s)
     THEN Happens([kind |-> "append", epoch |-> s.epoch, first |-> s.first, lines |-> s.lines])
     ELSE Silently
  /\ UNCHANGED <<own, lease, member, inbox, commits, faults, serial>>

\* The outcome reaches the owner: replies that waited for it are released, or the shard is dropped.
Outcome(s) ==
  /\ s.state \in {"landed", "refused"} /\ IsAwaited(s)
  /\ statements' = statements \ {s}
  /\ LET done == {c \in HeldBy(s.by) : c.revision < s.first + Len(s.lines)} IN
     IF s.state = "landed"
     THEN /\ own' = [own EXCEPT ![s.by].seq = @ + own[s.by].out, ![s.by].out = 0]
          /\ commits' = commits \ done
          /\ IF done = {} THEN Silently
             ELSE Happens([Answer(s.by, "commit") EXCEPT !.revision = s.first + Len(s.lines) - 1]
                          @@ [ids |-> {c.id : c \in done}])
     ELSE Dropped(s.by) /\ Silently
  /\ UNCHANGED <<lease, member, inbox, faults, serial>>

\* The owner gives up waiting: the append has landed, will land, or never lands.
GiveUp(r) ==
  /\ Serves(r) /\ own[r].out > 0 /\ Fault
  /\ Happens([kind |-> "unknown", epoch |-> own[r].epoch])
  /\ CASE Bug \in {"unknown_outcome_is_failure", "no_sequence_check"} ->
            own' = [own EXCEPT ![r].seq = @ + own[r].out, ![r].out = 0] /\ commits' = commits \ HeldBy(r)
       [] Bug = "unknown_append_is_repeated" ->
            /\ \E s \in statements : s.by = r /\ IsAwaited(s) /\
                 own' = [own EXCEPT ![r].seq = store.seq, ![r].out = 0, ![r].unsent = s.lines \o @]
            /\ UNCHANGED commits
       [] OTHER -> Dropped(r)
  /\ UNCHANGED <<lease, statements, member, inbox, serial>>

-----------------------------------------------------------------------------
(* The group's decisions, as service/rota/group takes them. *)

Started == [kind |-> "started"]

StartsPhase(f) == IF f.state = "Preparing" THEN <<>> ELSE <<Started>>

\* What a join of a known member means in a phase that is over: the leader, or changed metadata, starts a rebalance.
Restarts(f, m) == f.claims[m] # member[m].holds \/ (f.state = "Stable" /\ f.leader = m)

TakeJoin(r, m) ==
  /\ MayDecide(r) /\ member[m].state = "joining" /\ inbox[m] = NoAnswer
  /\ LET f == Facts(r)
         lines == IF m \notin f.members THEN <<[kind |-> "joined", member |-> m]>> \o StartsPhase(f) ELSE StartsPhase(f)
     IN /\ \/ m \notin f.members
           \/ f.state = "Preparing" /\ m \notin own[r].joined
           \/ f.state \in {"Completing", "Stable"} /\ Restarts(f, m)
        /\ own' = [own EXCEPT ![r] = [Decided(r, lines) EXCEPT
             !.joined = (IF f.state = "Preparing" THEN @ ELSE {}) \union {m},
             !.claims = [@ EXCEPT ![m] = member[m].holds]]]
  /\ Silently
  /\ UNCHANGED <<lease, statements, member, inbox, commits, faults, serial>>

Completed(f, gen, leader, members, claims) ==
  [kind |-> "completed", gen |-> gen, leader |-> leader, members |-> members, claims |-> claims]

\* Without a bug: every member has joined, and the leader stays while it rejoins.
Complete(r) ==
  /\ MayDecide(r)
  /\ LET f == Facts(r)
         joined == own[r].joined \intersect f.members
         absent == f.members \ joined
         gen == IF Bug = "generation_not_bumped" /\ f.gen > 0 THEN f.gen ELSE f.gen + 1
         removed == IF Bug = "generation_completes_without_waiting"
                    THEN [i \in 1..Cardinality(absent) |-> [kind |-> "gone", member |-> CHOOSE m \in absent : TRUE]] ELSE <<>>
         here == IF removed = <<>> THEN f.members ELSE joined
         listed == IF Bug = "member_missing_in_view" THEN joined ELSE here
         claims == [m \in Members |-> IF m \in joined THEN own[r].claims[m] ELSE {}]
     IN /\ f.state = "Preparing" /\ f.gen < MaxGen /\ joined # {}
        /\ joined = f.members \/ (Bug \in {"generation_completes_without_waiting", "member_missing_in_view"} /\ Cardinality(absent) = 1)
        /\ \E leader \in IF Bug = "leader_is_no_member" THEN Members ELSE IF f.leader \in joined THEN {f.leader} ELSE joined :
             own' = [own EXCEPT ![r] = [Decided(r, removed \o <<Completed(f, gen, leader, listed, claims)>>) EXCEPT
               !.joined = {}, !.claims = NoClaims]]
  /\ Silently
  /\ UNCHANGED <<lease, statements, member, inbox, commits, faults, serial>>

\* A member is expired after its own deadline, which is why it holds nothing by then. A leave is the same step.
Expire(r, m) ==
  /\ MayDecide(r) /\ m \in Facts(r).members /\ Bug # "no_expiry"
  /\ member[m].state = "out" \/ Bug = "early_expiry"
  /\ LET f == Facts(r)
         rest == IF f.members = {m} THEN <<[kind |-> "emptied", gen |-> f.gen + 1]>> ELSE StartsPhase(f)
     IN /\ f.members = {m} => f.gen < MaxGen
        /\ own' = [own EXCEPT ![r] = [Decided(r, <<[kind |-> "gone", member |-> m]>> \o rest) EXCEPT
             !.joined = (IF f.state = "Preparing" THEN @ ELSE {}) \ {m}]]
  /\ Silently
  /\ UNCHANGED <<lease, statements, member, inbox, commits, faults, serial>>

\* The leader's assignment arrives, however late.
TakeSync(r, s) ==
  /\ MayDecide(r)
  /\ LET f == Facts(r)
         kept == [m \in f.members |-> IF m \in DOMAIN s.assignment THEN s.assignment[m] ELSE {}]
         stored == IF Bug = "assignment_altered" THEN [m \in f.members |-> {}] ELSE kept
     IN /\ f.state = "Completing"
        /\ s.gen = f.gen \/ Bug = "sync_ignores_generation"
        /\ s.by = f.leader \/ (Bug = "anybody_may_assign" /\ s.by \in f.members)
        /\ own' = [own EXCEPT ![r] = Decided(r,
             <<[kind |-> "synced", gen |-> f.gen, leader |-> s.by, assignment |-> stored, resync |-> FALSE]>>)]
  /\ Silently
  /\ UNCHANGED <<lease, statements, member, inbox, commits, faults, serial>>

\* A commit arrives, however late: it is decided and held until it is durable, or rejected.
TakeCommit(r, c) ==
  /\ c.state = "sent" /\ Serves(r)
  /\ LET f == Facts(r)
         fits == /\ c.by \in f.settled \/ (Bug = "newcomer_commits" /\ c.by \in f.members)
                 /\ f.state # "Completing"
                 /\ c.gen = f.gen \/ Bug = "commit_ignores_generation"
         line == [kind |-> "committed", by |-> c.by, gen |-> c.gen, partition |-> c.partition, offset |-> c.offset,
                  id |-> c.id, late |-> FALSE]
     IN IF fits
        THEN /\ MayDecide(r)
             /\ own' = [own EXCEPT ![r] = Decided(r, <<line>>)]
             /\ IF Bug = "answer_before_durable"
                THEN /\ commits' = commits \ {c}
                     /\ Happens([Answer(r, "commit") EXCEPT !.revision = @ + 1] @@ [ids |-> {c.id}])
                ELSE /\ commits' = (commits \ {c}) \union
                          {[c EXCEPT !.state = "held", !.owner = r, !.revision = Revision(r) + 1]}
                     /\ Silently
        ELSE /\ MayAnswer(r)
             /\ commits' = commits \ {c}
             /\ Happens(Answer(r, "reject") @@ [ids |-> {c.id}])
             /\ UNCHANGED own
  /\ UNCHANGED <<lease, statements, member, inbox, faults, serial>>

-----------------------------------------------------------------------------
(* Answers to members. An answer shows memory, so it waits until all of it is durable that the next owner knows. *)

AnswerJoin(r, m) ==
  /\ MayAnswer(r) /\ member[m].state = "joining" /\ inbox[m] = NoAnswer
  /\ LET f == Facts(r)
     IN /\ m \in f.members
        /\ \/ f.state \in {"Completing", "Stable"} /\ ~Restarts(f, m)
           \/ Bug = "join_answered_in_the_phase" /\ f.state = "Preparing" /\ f.gen > 0
        /\ inbox' = [inbox EXCEPT ![m] =
             [kind |-> "join", gen |-> f.gen, leader |-> f.leader, members |-> f.members, claims |-> f.claims]]
        /\ Happens(Answer(r, "join") @@ [gen |-> f.gen, leader |-> f.leader, member |-> m])
  /\ UNCHANGED <<own, lease, statements, member, commits, faults, serial>>

AnswerSync(r, m) ==
  /\ MayAnswer(r) /\ member[m].state = "syncing" /\ inbox[m] = NoAnswer
  /\ LET f == Facts(r)
         share == IF m \in DOMAIN f.assignment THEN f.assignment[m] ELSE {}
     IN /\ m \in f.members /\ f.state = "Stable" /\ f.gen = member[m].gen
        /\ inbox' = [inbox EXCEPT ![m] = [kind |-> "share", share |-> share, offsets |-> f.offsets]]
        /\ Happens(Answer(r, "sync") @@ [gen |-> f.gen, member |-> m, share |-> share])
  /\ UNCHANGED <<own, lease, statements, member, commits, faults, serial>>

\* The answer to a heartbeat or a sync: a join phase is under way, or this member is unknown, or left behind.
AnswerMoved(r, m) ==
  /\ MayAnswer(r) /\ member[m].state \in {"syncing", "holding"} /\ inbox[m] = NoAnswer
  /\ LET f == Facts(r)
         kept == IF Cooperative THEN member[m].holds ELSE {}
     IN member' = [member EXCEPT ![m] =
          IF m \notin f.members THEN Outside
          ELSE [@ EXCEPT !.state = "joining", !.holds = IF f.state = "Preparing" THEN kept ELSE {}]]
        /\ \/ m \notin f.members
           \/ f.state = "Preparing"
           \/ f.gen > member[m].gen
  /\ Happens(Answer(r, "heartbeat"))
  /\ UNCHANGED <<own, lease, statements, inbox, commits, faults, serial>>

-----------------------------------------------------------------------------
(* Members. *)

Start(m) ==
  /\ member[m].state = "out"
  /\ member' = [member EXCEPT ![m].state = "joining"]
  /\ Silently
  /\ UNCHANGED <<own, lease, statements, inbox, commits, faults, serial>>

\* What a leader may assign: each partition to one member; not to another one than the member that still holds it.
Assignments(members, claims) ==
  {a \in [members -> SUBSET Partitions] :
     /\ \/ Bug = "partition_assigned_twice"
        \/ \A m, n \in members : m # n => a[m] \intersect a[n] = {}
     /\ \/ ~Cooperative \/ Bug = "grant_before_revoke"
        \/ \A m, n \in members : m # n => a[m] \intersect claims[n] = {}
     /\ Cooperative \/ UNION {a[m] : m \in members} = Partitions}

\* A follower waits for its share. A leader assigns; asked again for the same generation, it repeats itself.
LearnGeneration(m) ==
  /\ inbox[m].kind = "join"
  /\ inbox' = [inbox EXCEPT ![m] = NoAnswer]
  /\ member' = [member EXCEPT ![m].state = "syncing", ![m].gen = inbox[m].gen]
  /\ IF (inbox[m].leader = m \/ Bug = "anybody_may_assign") /\ ~\E s \in sent : s.by = m /\ s.gen = inbox[m].gen
     THEN \E a \in Assignments(inbox[m].members, inbox[m].claims) :
            Happens([kind |-> "send", by |-> m, gen |-> inbox[m].gen, assignment |-> a])
     ELSE Silently
  /\ UNCHANGED <<own, lease, statements, commits, faults, serial>>

\* A cooperative member keeps what it holds until its work there has stopped (GiveBack).
TakeUp(m) ==
  /\ inbox[m].kind = "share"
  /\ inbox' = [inbox EXCEPT ![m] = NoAnswer]
  /\ member' = [member EXCEPT ![m].state = "holding", ![m].share = inbox[m].share, ![m].offsets = inbox[m].offsets,
                              ![m].holds = (IF Cooperative THEN @ ELSE {}) \union inbox[m].share]
  /\ Silently
  /\ UNCHANGED <<own, lease, statements, commits, faults, serial>>

\* The first round revokes; the member joins again, so that a second one may grant what it gave back.
GiveBack(m) ==
  /\ member[m].state = "holding" /\ member[m].holds # member[m].share
  /\ member' = [member EXCEPT ![m].holds = member[m].share, ![m].state = "joining"]
  /\ Silently
  /\ UNCHANGED <<own, lease, statements, inbox, commits, faults, serial>>

\* The member's own deadline, a crash, or a leave: it holds nothing, and takes no answer to an earlier call.
Stop(m) ==
  /\ member[m].state # "out" /\ Fault
  /\ member' = [member EXCEPT ![m] = Outside]
  /\ inbox' = [inbox EXCEPT ![m] = NoAnswer]
  /\ Silently
  /\ UNCHANGED <<own, lease, statements, commits, serial>>

\* An answer is lost; the member calls again.
LoseAnswer(m) ==
  /\ inbox[m] # NoAnswer /\ Fault
  /\ inbox' = [inbox EXCEPT ![m] = NoAnswer]
  /\ Silently
  /\ UNCHANGED <<own, lease, statements, member, commits, serial>>

\* One commit at a time: progress of a partition that it holds, from what it has fetched. It may arrive late.
SendCommit(m, p) ==
  /\ member[m].state = "holding" /\ p \in member[m].holds
  /\ serial < MaxCommits /\ ~\E c \in commits : c.by = m
  /\ serial' = serial + 1
  /\ commits' = commits \union
       {[id |-> serial', by |-> m, gen |-> member[m].gen, partition |-> p, offset |-> member[m].offsets[p] + 1,
         state |-> "sent", owner |-> Nobody, revision |-> 0]}
  /\ member' = [member EXCEPT ![m].offsets[p] = @ + 1]
  /\ Silently
  /\ UNCHANGED <<own, lease, statements, inbox, faults>>

\* A write to the fenced resource with the token of any generation there has been: it may have been on its way for long.
Write(p, token) ==
  /\ Writes /\ token \in 1..store.facts.gen
  /\ token >= fence[p] \/ Bug = "fence_accepts_any_token"
  /\ token # fence[p]
  /\ Happens([kind |-> "write", partition |-> p, token |-> token, accepted |-> TRUE])
  /\ UNCHANGED <<own, lease, statements, member, inbox, commits, faults, serial>>

-----------------------------------------------------------------------------
ReplicaStep(r) ==
  \/ Claim(r) \/ Send(r)
  \/ \E m \in Members : TakeJoin(r, m) \/ AnswerJoin(r, m) \/ AnswerSync(r, m) \/ AnswerMoved(r, m)
  \/ Complete(r)
  \/ \E m \in Members : Expire(r, m)
  \/ \E s \in sent : TakeSync(r, s)
  \/ \E c \in commits : TakeCommit(r, c)

MemberStep(m) == LearnGeneration(m) \/ TakeUp(m) \/ GiveBack(m)

StoreStep == LeaseEnds \/ \E s \in statements : Land(s) \/ Outcome(s)

Trouble ==
  \/ \E r \in Replicas : ClaimUnanswered(r) \/ Drop(r) \/ GiveUp(r)
  \/ \E m \in Members : Stop(m) \/ LoseAnswer(m)

Next ==
  \/ StoreStep \/ Trouble
  \/ \E r \in Replicas : ReplicaStep(r)
  \/ \E m \in Members : MemberStep(m) \/ Start(m) \/ \E p \in Partitions : SendCommit(m, p)
  \/ \E p \in Partitions, token \in 1..MaxGen : Write(p, token)

Spec == Init /\ [][Next]_vars

\* Replicas, the store and members that have started go on, in any order; no member has to start, to stop, or to commit.
Progress == StoreStep \/ (\E r \in Replicas : ReplicaStep(r)) \/ (\E m \in Members : MemberStep(m))

FairSpec == Spec /\ WF_vars(Progress)

-----------------------------------------------------------------------------
(* Rules about replicas and members, beside those of the journal. *)

\* At no time do two members hold the same partition, each by its own reckoning.
S7c == \A m, n \in Members : m # n => member[m].holds \intersect member[n].holds = {}

\* Between two appends, the memory of the newest owner is what the store holds.
S14 == \A r \in Replicas : (/\ Serves(r) /\ own[r].epoch = store.tail /\ store.tail = store.epoch
                          /\ own[r].out = 0 /\ own[r].unsent = <<>>) =>
         own[r].facts = store.facts

\* A join phase ends.
L3 == (store.facts.state = "Preparing") ~> (store.facts.state # "Preparing")

\* In the end, every member that has not stopped holds its share of the one current generation.
L7 == <>[](\A m \in Members : member[m].state = "out" \/ (member[m].state = "holding" /\ member[m].gen = store.facts.gen))

-----------------------------------------------------------------------------
(* Situations that TLC has to reach, or else the rules were not tested:    *)
(* each of these is false somewhere.                                       *)

\* A partition that a leader gave to one member is later held by another.
NeverMoves ==
  ~\E m, n \in Members, s \in sent :
     /\ m # n /\ m \in DOMAIN s.assignment /\ s.gen < member[n].gen
     /\ member[n].state = "holding" /\ s.assignment[m] \intersect member[n].share # {}

\* A second owner goes on with the generation that the first one made Stable.
NeverTakenOver == ~(store.start > 1 /\ store.seq > store.start /\ store.facts.state = "Stable" /\ store.facts.gen > 0)

\* A statement of an earlier epoch is still on its way.
NeverLate == ~\E s \in statements : s.state = "sent" /\ s.epoch < store.epoch
=============================================================================
