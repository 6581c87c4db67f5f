/* How an exclusive lease goes from one client of a process to another without the engine, is kept
 * for the next one, and how it ends: hold.go, keep.go, lease.go, localqueue.go.
 *
 * Each step, and the function that it models:
 *
 *   acquire, waits, gets         localQueue.enter, wait and leave in localqueue.go
 *   contend                      acquisition.contend in contend.go; acquisition.begin in acquire.go
 *   FIT                          hold.canHandOver in handover.go
 *   handed = true                Lease.Release, hold.handOver, localQueue.handOver
 *   gets, of what was handed     acquisition.take and hold.take in handover.go: the latter checks the lease again; if
 *                                it is not fit, it gives the lease up and contends
 *   FRESH                        hold.isConfirmed in keep.go
 *   kept = true                  hold.offer, localQueue.offer; asKept: a waiter is offered it at once
 *   kept = false                 localQueue.take and enter, or reclaim by GiveBack
 *   GiveBack                     hold.giveBack and check: a recall, the end of the window, Close
 *   lose, pass                   hold.loseIf, localQueue.pass
 *   giveUp                       hold.release, which names the grant
 *   Keeper                       deadlines.go, renewal.go, Request.Lost */

#define TTL    6 /* ticks */
#define WINDOW 1 /* Options.HandOver: ticks since the grant within which the lease may be handed over; and
                  * Options.Keep: ticks since the engine's last word within which it may be kept and taken */
#ifndef KEEP
#define KEEP   false
#endif
#ifndef LAST
#define LAST   5 /* when time stops */
#endif
#ifndef EVICTS
#define EVICTS 1 /* how often the engine ends the lease of the process without telling it */
#endif
#ifndef RENEWALS
#define RENEWALS 1
#endif
#ifndef TURNS
#define TURNS  1 /* how often each client of the process acquires */
#endif

#ifndef OTHERS
#define OTHERS 1 /* how often the other process acquires */
#endif

/* The engine: P is the process with two clients, Q another one. */
#define NOBODY 0
#define P 1
#define Q 2
byte owner, left, fence; /* fence: of the last grant */

/* What the process knows of its hold. */
bool held, lost, handed, releasing; /* handed: in transit, no client has it */
bool kept, asKept; /* kept: whoever comes may take it; asKept: in transit by the rules for that */
byte base, granted, deadline, handOvers; /* base: its fence; granted: ticks since; deadline: ticks until */
byte word; /* ticks since the engine was asked and said that the process holds */

/* The queue of the process. */
bool turn;     /* somebody has the turn */
bool waits[2]; /* for the turn */
bool gets[2];  /* was given it, maybe with the hold */

bool believes[2]; /* the clients of the process */
bool believesQ;
byte leftQ, age;   /* age: ticks since the call that contends was sent */
byte token;        /* the greatest that anybody got; a fence is so many hand-overs: */
#define STEP 8
bool overtaken;    /* Q was granted while the process held */
byte overtakenFor; /* ticks since */
bool evicted;      /* the engine ended the hold early: that both believe then is documented */
byte now, gone;
byte evicts = EVICTS, renewals = RENEWALS;

#ifndef ANY_AGE
#define ANY_AGE false /* mutation: the lease is handed over beyond the window */
#endif
#ifndef NO_SECOND_LOOK
#define NO_SECOND_LOOK false /* mutation: who takes it does not look whether it is fit still */
#endif
#ifndef HAND_OVERS
#define HAND_OVERS handOvers /* mutation: 0, tokens do not tell them apart */
#endif
#ifndef KEEPS_ANY_AGE
#define KEEPS_ANY_AGE false /* mutation: what is kept may be old */
#endif
#ifndef NO_RECLAIM
#define NO_RECLAIM false /* mutation: what is being given back may still be taken */
#endif
#ifndef TAKES_UNSEEN
#define TAKES_UNSEEN false /* mutation: who takes what is kept does not look whether it is fresh */
#endif
#define FIT (held && !lost && deadline * 2 > TTL && (granted <= WINDOW || ANY_AGE))
#define FRESH (KEEP && held && !lost && deadline * 2 > TTL && (word <= WINDOW || KEEPS_ANY_AGE))

inline tick(what) { if :: what > 0 -> what-- :: else fi }
inline grow(what) { if :: what <= WINDOW -> what++ :: else fi }

inline gains(who, t) {
	printf("%d holds, token %d after %d\n", who, t, token);
	assert(t > token || evicted); /* promise 2 */
	assert(evicted || (who == 2 -> !(believes[0] || believes[1]) : !believesQ && !believes[1 - who])); /* promise 1 */
	token = t
}

/* Gives the turn to the next waiter, who contends. */
inline pass() {
	if
	:: waits[0] -> waits[0] = false; gets[0] = true
	:: waits[1] -> waits[1] = false; gets[1] = true
	:: else -> turn = false
	fi
}

/* Ends the hold for a cause that is not a Release. */
inline lose() {
	printf("lost\n");
	lost = true; believes[0] = false; believes[1] = false;
	if :: !handed && !kept -> pass() :: else fi /* who gets it keeps the turn, and sees the cause */
}

/* The engine gives up a grant of the process, if it is still there. */
inline giveUp(grant) {
	if :: owner == P && fence == grant -> owner = NOBODY; left = 0 :: else fi
}

proctype Client(byte me) {
	byte turns = TURNS, mine;
	bool yes, wasKept;

acquire:
	if
	:: atomic { !turn -> turn = true } goto contend
	:: atomic { turn && kept -> kept = false || NO_RECLAIM && releasing; wasKept = true } goto takes
	:: atomic { turn && !kept -> waits[me] = true }
	fi;
end_waits:
	if
	:: atomic { gets[me] && !handed -> gets[me] = false } goto contend
	:: atomic { gets[me] && handed -> gets[me] = false; handed = false; wasKept = asKept; asKept = false } /* adopt */
	:: atomic { waits[me] -> waits[me] = false } goto next /* it gives up */
	fi;
takes:
	if
	:: atomic { (wasKept -> FRESH || TAKES_UNSEEN : FIT || NO_SECOND_LOOK) ->
		wasKept = false; mine = base; handOvers++; believes[me] = true;
		gains(me, base * STEP + HAND_OVERS) }
		goto holds
	:: atomic { !(wasKept -> FRESH || TAKES_UNSEEN : FIT || NO_SECOND_LOOK) -> wasKept = false; held = false; mine = base } /* no longer fit, or lost: the turn is this client's */
		atomic { giveUp(mine) }
	fi;

contend:
	age = 0;
end_contends:
	atomic { owner == NOBODY -> /* Try */
		owner = P; left = TTL; fence++; mine = fence }
	if
	:: atomic { age < TTL -> /* begin */
		base = mine; deadline = TTL - age; granted = 0; word = age; handOvers = 0;
		held = true; lost = false; releasing = false; evicted = owner != P || fence != mine; overtaken = false;
		believes[me] = true;
		if :: !evicted -> gains(me, base * STEP) :: else fi }
	:: atomic { age >= TTL -> giveUp(mine); pass() }
		goto next
	fi;

holds:	/* and Release, at any time */
	if
	:: atomic { !lost && base == mine && held && deadline == 0 -> lose() } goto holds /* expire */
	:: atomic { lost || base != mine || !held -> believes[me] = false; giveUp(mine) } /* ErrLost; abandon */
		goto next
	:: atomic { !lost && base == mine && held && deadline > 0 && FRESH -> /* keep, offer */
		printf("%d keeps, %d after the engine's word\n", me, word);
		assert(!(overtaken && overtakenFor > WINDOW)); /* promise 3 */
		believes[me] = false;
		if
		:: waits[1 - me] -> handed = true; asKept = true; waits[1 - me] = false; gets[1 - me] = true
		:: else -> kept = true
		fi }
		goto next
	:: atomic { !lost && base == mine && held && deadline > 0 && !FRESH && FIT && waits[1 - me] -> /* handOver */
		printf("%d hands over, %d after the grant\n", me, granted);
		assert(!(overtaken && overtakenFor > WINDOW)); /* promise 3 */
		believes[me] = false; handed = true; waits[1 - me] = false; gets[1 - me] = true }
		goto next
	:: atomic { !lost && base == mine && held && deadline > 0 && !FRESH && !(FIT && waits[1 - me]) ->
		believes[me] = false; releasing = true }
	fi;
	atomic {
		yes = (owner == P && fence == mine);
		printf("%d releases: %d\n", me, yes);
		assert(!(yes && overtaken)); /* promise 3 */
		giveUp(mine); yes = false }
	atomic { held = false; pass() }

next:
	atomic { turns--; mine = 0 }
	if
	:: turns > 0 -> goto acquire
	:: else -> gone++
	fi
}

/* The deadline's timer, renewals, and news of a loss; any of them may come late. */
proctype Keeper() {
end:	do
	:: atomic { held && !lost && !releasing && deadline == 0 -> lose() }
	:: atomic { held && !lost && !releasing && (owner != P || fence != base) -> lose() }
	:: atomic { held && !lost && !releasing && deadline > 0 && owner == P && fence == base && renewals > 0 ->
		renewals--; left = TTL; deadline = TTL; word = 0 }
	od
}

/* What is kept is given back at any time: for a recall, or because it is not used. */
proctype GiveBack() {
	byte mine;
end:	do
	:: atomic { kept && !releasing -> kept = NO_RECLAIM; releasing = true; mine = base }
		atomic { giveUp(mine) }
		atomic { if :: base == mine && releasing -> held = false; kept = false; releasing = false; pass() :: else fi }
	od
}

/* Another process. */
proctype Other() {
	byte turns = OTHERS;
end:	do
	:: atomic { turns > 0 && owner == NOBODY ->
		turns--;
		owner = Q; left = TTL; fence++;
		if :: held -> overtaken = true; overtakenFor = 0 :: else fi;
		believesQ = true; leftQ = TTL;
		gains(2, fence * STEP) }
	:: atomic { believesQ ->
		believesQ = false;
		if :: owner == Q -> owner = NOBODY; left = 0 :: else fi }
	od
}

proctype Evict() {
end:	do
	:: atomic { evicts > 0 && owner == P -> evicts--; printf("evicted\n"); owner = NOBODY; left = 0; evicted = true }
	od
}

proctype Clock() {
end:	do
	:: atomic { now < LAST && gone < 2 ->
		now++;
		printf("time %d\n", now);
		if :: left == 1 -> owner = NOBODY :: else fi;
		tick(left);
		tick(deadline);
		if :: deadline == 0 -> believes[0] = false; believes[1] = false :: else fi; /* contexts look at the clock */
		tick(leftQ);
		if :: leftQ == 0 -> believesQ = false :: else fi;
		grow(granted); grow(word); grow(overtakenFor);
		if :: age < TTL -> age++ :: else fi }
	od
}

init {
	atomic { run Clock(); run Evict(); run Keeper(); run GiveBack(); run Other(); run Client(0); run Client(1) }
end:	gone == 2 && !kept && !releasing;
	assert(owner != P && !turn) /* promise 4 */
}
