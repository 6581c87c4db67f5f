/* How an exclusive lease goes from one client of a process to another without the engine, and how
 * it ends: hold.go, lease.go, localqueue.go.
 *
 * Each step, and the function that it models:
 *
 *   acquire, waits, gets         localQueue.enter, wait and leave in localqueue.go
 *   contend                      acquisition.contend in contend.go; acquisition.begin in acquire.go
 *   FIT                          hold.canHandOver in handover.go
 *   handed = true                Lease.Release, hold.handOver, localQueue.handOver
 *   gets, of what was handed     acquisition.take and hold.take in handover.go: the latter checks the lease again; if
 *                                it is not fit, it gives the lease up and contends
 *   lose, pass                   hold.markLostIf, localQueue.pass
 *   giveUp                       hold.release, which names the grant
 *   Keeper                       deadlines.go, renewal.go, Request.Lost */

#define TTL    6 /* ticks */
#define WINDOW 1 /* Options.HandOver: ticks since the grant within which the lease may be handed over */
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
byte base, granted, deadline, handOvers; /* base: its fence; granted: ticks since; deadline: ticks until */

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
#define FIT (held && !lost && deadline * 2 > TTL && (granted <= WINDOW || ANY_AGE))

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
	if :: !handed -> pass() :: else fi /* who gets it keeps the turn, and sees the cause */
}

/* The engine gives up a grant of the process, if it is still there. */
inline giveUp(grant) {
	if :: owner == P && fence == grant -> owner = NOBODY; left = 0 :: else fi
}

proctype Client(byte me) {
	byte turns = TURNS, mine;
	bool yes;

acquire:
	if
	:: atomic { !turn -> turn = true } goto contend
	:: atomic { turn -> waits[me] = true }
	fi;
end_waits:
	if
	:: atomic { gets[me] && !handed -> gets[me] = false } goto contend
	:: atomic { gets[me] && handed -> gets[me] = false; handed = false } /* adopt */
	:: atomic { waits[me] -> waits[me] = false } goto next /* it gives up */
	fi;
	if
	:: atomic { FIT || NO_SECOND_LOOK ->
		mine = base; handOvers++; believes[me] = true;
		gains(me, base * STEP + HAND_OVERS) }
		goto holds
	:: atomic { !FIT && !NO_SECOND_LOOK -> held = false; mine = base } /* no longer fit, or lost: the turn is this client's */
		atomic { giveUp(mine) }
	fi;

contend:
	age = 0;
end_contends:
	atomic { owner == NOBODY -> /* Try */
		owner = P; left = TTL; fence++; mine = fence }
	if
	:: atomic { age < TTL -> /* begin */
		base = mine; deadline = TTL - age; granted = 0; handOvers = 0;
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
	:: atomic { !lost && base == mine && held && deadline > 0 && FIT && waits[1 - me] -> /* handOver */
		printf("%d hands over, %d after the grant\n", me, granted);
		assert(!(overtaken && overtakenFor > WINDOW)); /* promise 3 */
		believes[me] = false; handed = true; waits[1 - me] = false; gets[1 - me] = true }
		goto next
	:: atomic { !lost && base == mine && held && deadline > 0 && !(FIT && waits[1 - me]) ->
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
		renewals--; left = TTL; deadline = TTL }
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
		grow(granted); grow(overtakenFor);
		if :: age < TTL -> age++ :: else fi }
	od
}

init {
	atomic { run Clock(); run Evict(); run Keeper(); run Other(); run Client(0); run Client(1) }
end:	gone == 2;
	assert(owner != P && !turn) /* promise 4 */
}
