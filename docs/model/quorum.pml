/* How a quorum grants, renews, regains and releases, over nodes that may forget: engine/quorum/claim.go, regain.go.
 *
 * Each step, and the function that it models (engine/quorum/claim.go, unless another file is named):
 *
 *   round(try), ask, DECIDED     claim.tryOnce, claim.round, Driver.decided
 *   compare                      claim.take: the greatest fence among those that granted
 *   asked = ..., ask(lift)       claim.raise: written back to those with a smaller one, where the claim still holds
 *   grants                       the end of claim.tryOnce: both rounds count against the TTL; acquisition.begin in
 *                                acquire.go sets the deadline
 *   refused                      claim.rollBack
 *   round(renew)                 claim.Renew, claim.renewed; hold.renewed in renewal.go moves the deadline
 *   round(release)               Lease.Release ends the context, then calls claim.Release; after the deadline it
 *                                reports a loss whatever the result
 *   serve                        the scripts acquire, raise, renew and release of redislock
 *   counts, COUNTS, misses       standing of a node, claim.counted in regain.go
 *   begins, confirmed            claim.begin, claim.regain: a node that lost the lease is asked again after a
 *                                renewal, and counts from the next
 *   Regain                       claim.again, claim.regainAt: skipped where an earlier call has regained it; writes
 *                                the token there
 *   WAITS                        claim.next: calls to one node follow each other
 *   Evict                        Driver.Evict, which a node may miss
 *   late, Late                   attempts and releases are numbered: a late one counts only until a later one is served
 *   quiet, Restart               memory.lua, and Options.MinUptime of redislock */

#define NODES    3
#define MAJORITY 2
#define TTL      2 /* ticks */
#ifndef MEMORY
#define MEMORY   2 /* ticks that a node must be known to remember before it grants: TTL at least */
#endif
#ifndef SKEW
#define SKEW     1 /* ticks that the clocks of nodes may differ by, less than MEMORY */
#endif
#ifndef LAST
#define LAST     4 /* when time stops */
#endif
#ifndef LOSSES
#define LOSSES   1 /* calls whose answer is lost, or that are served late or never */
#endif
#ifndef FORGETS
#define FORGETS  1 /* how often a node restarts without its data */
#endif
#ifndef RENEWALS
#define RENEWALS 1
#endif
#ifndef TURNS
#define TURNS    1 /* how often each client acquires */
#endif
#ifndef SENT
#define SENT age[c] /* since when the TTL counts; mutation: 0, since the answer */
#endif
#ifndef REGAINS
#define REGAINS  0 /* how many calls may ask a node for a lease again that it has lost: engine/quorum/regain.go. Of client 0 */
#endif
#ifndef EVICTS
#define EVICTS   0 /* nodes at which client 0 is evicted */
#endif
#ifndef HELD
#define HELD     0 /* client 0 begins as the holder by these nodes, a set, or by ANY majority; 0: it acquires */
#endif
#ifndef SPARES
#define SPARES   false /* nodes restart only while client 0 has the lease at both others, as far as it knows */
#endif
#ifndef AT_ONCE
#define AT_ONCE false /* mutation: what is regained counts at once */
#endif
#ifndef SAME_ROUND
#define SAME_ROUND false /* mutation: it counts after the round in which it was regained */
#endif
#ifndef RELEASES_ALL
#define RELEASES_ALL false /* mutation: Release counts what was regained */
#endif
#ifndef OVERTAKES
#define OVERTAKES false /* mutation: a release does not wait for the call that asks again */
#endif
#ifndef NO_LIFT
#define NO_LIFT false /* mutation: a node that was regained is not told the token */
#endif
#ifndef TWICE
#define TWICE false /* mutation: a node is asked again although an earlier call has regained it meanwhile */
#endif
#ifndef UNNUMBERED
#define UNNUMBERED false /* mutation: a try that is late counts although a later one was served */
#endif
#ifndef STALE
#define STALE false /* mutation: a node counts for what an earlier try was granted there, which was given up */
#endif
#define GRANTS   8 /* fences by which a clock goes on in a tick: more than a node grants in one */

#define NOBODY 9
byte holder[NODES] = NOBODY; /* of each node: 0 or 1, a client */
byte left[NODES];            /* of the lease there, in ticks */
byte fence[NODES];           /* the last one that was given or written back there */
byte quiet[NODES];           /* ticks until it may grant, after it forgot */
byte skew[NODES];            /* of its clock */

mtype = {none, try, lift, renew, release, again};
mtype late[2 * NODES] = none; /* a call of a client to a node that nobody waits for any more */

byte age[2];       /* of each client: ticks since the round that counts was sent */
byte believes[2];  /* ticks until its deadline; 0: it does not hold */
byte wanted[2];    /* the fence to write back; of client 0, where it asks again, as long as it holds */
bool overtaken[2]; /* the other was granted since it was */
byte counts[2];    /* nodes that have the lease of a client since a majority has, a set */
byte back, fresh;  /* nodes that have it again, of client 0: since before the round of renewals, and since it began */
byte asks, more;   /* nodes that are asked again in the background, and that are to be once more when that is over */
byte gone;         /* clients that are through */

byte now, token; /* token: the greatest that anybody got */
byte losses = LOSSES, forgets = FORGETS, renewals = RENEWALS, regains = REGAINS, evicts = EVICTS;
bool evicted;    /* client 0 is: it and another may overlap until its deadline */
bool dirty;      /* a call was lost, or a client died: what that left ends with its TTL */

#define IN(set, n) (((set) >> (n)) & 1)
#define SIZE(set)  (IN(set, 0) + IN(set, 1) + IN(set, 2))
#define ALL        7
#define ANY        8
#define LIFTS      1 /* steps of asking again */
#define ANSWERS    2
#define OVER       3
inline max(a, b) { if :: b > a -> a = b :: else fi }
inline tick(what) { if :: what > 0 -> what-- :: else fi }

/* Node n serves a call of client c: redislock's scripts acquire, raise, renew and release. */
inline serve(what) {
	says = true;
	if
	:: (what == try || what == again) && (holder[n] == c || holder[n] == NOBODY && quiet[n] == 0) ->
		if
		:: holder[n] == NOBODY -> fence[n]++; max(fence[n], (now + skew[n]) * GRANTS)
		:: else
		fi;
		holder[n] = c;
		left[n] = TTL
	:: what == lift && holder[n] == c -> max(fence[n], wanted[c])
	:: what == renew && holder[n] == c -> left[n] = TTL
	:: what == release && holder[n] == c -> holder[n] = NOBODY; left[n] = 0
	:: else -> says = false
	fi;
	printf("  node %d: %e of client %d: %d, fence %d\n", n, what, c, says, fence[n])
}

/* A call that is late is served at some time, unless a later one of its claim was: they are numbered. */
proctype Late(byte c; byte n) {
	bool says;
end:	do
	:: atomic { late[c * NODES + n] != none -> serve(late[c * NODES + n]); late[c * NODES + n] = none; says = false }
	od
}

proctype Restart(byte n) {
end:	do
	:: atomic { forgets > 0 && gone < 2 && (!SPARES || SIZE((counts[0] | back | fresh) & ~(1 << n)) == NODES - 1) ->
		forgets--;
		printf("  node %d forgets\n", n);
		holder[n] = NOBODY;
		left[n] = 0;
		fence[n] = 0;
		quiet[n] = MEMORY }
	od
}

/* Asks node n for client 0's lease again: a try, and the token is written to it. Each may be served and its
 * answer lost, or served late; then nobody waits for it any more. */
proctype Regain(byte n) {
	byte c, step;
	bool says;
end:	do
	:: atomic { IN(asks, n) && step == 0 ->
		step = OVER;
		if
		:: regains > 0 && (TWICE || !IN(counts[0] | back | fresh, n)) ->
			regains--;
			if :: (late[n] == try || late[n] == again) && !UNNUMBERED -> late[n] = none :: else fi;
			if
			:: serve(again); if :: says -> step = LIFTS :: else fi
			:: losses > 0 && late[n] == none -> losses--; late[n] = again; printf("  node %d: again is late\n", n)
			fi
		:: else
		fi;
		says = false }
	:: atomic { step == LIFTS ->
		step = OVER;
		if
		:: !NO_LIFT -> serve(lift); if :: says -> step = ANSWERS :: else fi
		:: NO_LIFT -> step = ANSWERS
		:: losses > 0 -> losses--; printf("  node %d: again, and the answer is lost\n", n)
		:: losses > 0 && late[n] == none -> losses--; late[n] = lift; printf("  node %d: lift is late\n", n)
		fi;
		says = false }
	:: atomic { step == ANSWERS ->
		step = OVER;
		if
		:: AT_ONCE -> counts[0] = counts[0] | (1 << n)
		:: !AT_ONCE -> counts[0] = counts[0] & ~(1 << n); back = back & ~(1 << n); fresh = fresh | (1 << n); printf("  node %d is regained\n", n)
		:: losses > 0 -> losses--; printf("  node %d: the answer of lift is lost\n", n)
		fi }
	:: atomic { step == OVER ->
		step = 0;
		if :: IN(more, n) -> more = more & ~(1 << n) :: else -> asks = asks & ~(1 << n) fi }
	od
}

/* An operator ends client 0's lease at the nodes, one after the other, or not at all of them. */
proctype Evict(byte n) {
end:	do
	:: atomic { evicts > 0 && holder[n] == 0 && believes[0] > 0 ->
		evicts--;
		evicted = true;
		printf("  node %d: evicts client 0\n", n);
		holder[n] = NOBODY;
		left[n] = 0 }
	od
}

proctype Clock() {
	byte i;
end:	do
	:: atomic { now < LAST && gone < 2 ->
		now++;
		printf("time %d\n", now);
		for (i : 0 .. NODES - 1) {
			if :: left[i] == 1 -> holder[i] = NOBODY :: else fi;
			tick(left[i]);
			tick(quiet[i])
		}
		for (i : 0 .. 1) {
			if :: age[i] < TTL -> age[i]++ :: else fi;
			tick(believes[i])
		}
		i = 0 }
	od
}

#define DECIDED    (SIZE(yes) >= MAJORITY || SIZE(no) > NODES - MAJORITY || SIZE(asked & ~yes & ~no) > NODES - MAJORITY || asked == ALL)

/* Node n does not have the lease of client c. */
inline misses(n) {
	counts[c] = counts[c] & ~(1 << n);
	if :: c == 0 -> back = back & ~(1 << n); fresh = fresh & ~(1 << n) :: else fi
}

/* Begins a round: asked are those that it does not ask. */
inline round(what, except) {
	printf("client %d: %e\n", c, what);
	asked = except; no = 0
}

/* A call to a node waits for the one before, which may be in the background. */
#define WAITS(n) (c == 0 && IN(asks, n) && !(OVERTAKES && what == release))

/* What node n says of a renewal or a release counts, for it has had the lease while a majority had. */
#define COUNTS (IN(counts[c], n) || what == release && RELEASES_ALL)

/* Asks one node more. Nodes serve tries in any order, and the rest in theirs, to keep the model small. */
inline ask(what) {
	if
	:: !IN(asked, 0) && !WAITS(0) -> n = 0
	:: !IN(asked, 1) && !WAITS(1) && (what == try || IN(asked, 0) || WAITS(0)) -> n = 1
	:: !IN(asked, 2) && !WAITS(2) && (what == try || (IN(asked, 0) || WAITS(0)) && (IN(asked, 1) || WAITS(1))) -> n = 2
	fi;
	asked = asked | (1 << n);
	if :: what != renew -> late[c * NODES + n] = none :: else fi; /* renewals have no number */
	if
	:: serve(what);
		if
		:: says && (what == try || what == lift || COUNTS) -> yes = yes | (1 << n); if :: what == try -> given[n] = fence[n] :: else fi
		:: says && (what == renew || what == release) && !COUNTS /* it was regained: neither yes nor no */
		:: !says -> no = no | (1 << n); if :: what == renew || what == release -> misses(n) :: else fi
		fi
	:: losses > 0 -> losses--; dirty = true; serve(what); printf("  and the answer is lost\n")
	:: losses > 0 -> losses--; dirty = true; late[c * NODES + n] = what; printf("  node %d: %e is late\n", n, what)
	fi;
	n = 0; says = false
}

/* The greatest fence of those who said yes, and who of them has it. Only their answers count. */
inline compare() {
	wanted[c] = 0;
	for (n : 0 .. NODES - 1) { if :: IN(yes, n) -> max(wanted[c], given[n]) :: else fi }
	granted = yes;
	have = 0;
	for (n : 0 .. NODES - 1) {
		if :: IN(yes, n) && given[n] == wanted[c] -> have = have | (1 << n) :: else fi;
		given[n] = 0
	}
	n = 0
}

inline grants() {
	believes[c] = TTL - SENT;
	printf("client %d holds for %d, token %d after %d\n", c, believes[c], wanted[c], token);
	assert(believes[1 - c] == 0 || evicted && c == 1); /* promise 1 */
	assert(wanted[c] > token);    /* promise 2 */
	token = wanted[c];
	counts[c] = granted;
	granted = 0;
	age[c] = TTL; /* does not matter until the next round */
	if :: c == 0 && REGAINS > 0 :: else -> wanted[c] = 0 fi;
	have = 0; yes = 0; no = 0; asked = 0;
	overtaken[c] = false;
	overtaken[1 - c] = true
}

/* A round of renewals, of which what was regained before counts from its end on. */
inline begins() {
	if :: c == 0 -> back = back | fresh; fresh = 0 :: else fi
}

inline leaves() {
	counts[c] = 0;
	if :: c == 0 -> back = 0; fresh = 0; wanted[0] = 0 :: else fi
}

inline confirmed() {
	if
	:: c == 0 ->
		counts[0] = counts[0] | back | (SAME_ROUND -> fresh : 0);
		back = 0;
		if
		:: regains > 0 ->
			more = asks & ~(counts[0] | fresh); /* the one on its way may come back yet */
			asks = asks | ALL & ~(counts[0] | fresh)
		:: else
		fi
	:: else
	fi
}

proctype Client(byte c) {
	byte n, yes, no, asked, have, granted, turns = TURNS;
	byte given[NODES];
	bool says, before;

	if
	:: HELD != 0 && c == 0 -> goto held
	:: else
	fi;
acquire:
	atomic { age[c] = 0; yes = 0; round(try, 0) }
	do
	:: atomic { asked != ALL -> ask(try) }
	:: DECIDED -> break
	od;
	if
	:: SIZE(yes) < MAJORITY -> goto refused
	:: else -> atomic { compare() }
	fi;
#ifndef NO_WRITE_BACK /* mutation: the maximum is not written back */
	if
	:: SIZE(have) >= MAJORITY
	:: else ->
		atomic { asked = ALL & ~(yes & ~have); yes = have }
		do
		:: atomic { asked != ALL -> ask(lift) }
		:: SIZE(yes) >= MAJORITY || asked == ALL -> break
		od
	fi;
#endif
	if
	:: atomic { SIZE(yes) >= MAJORITY && age[c] < TTL -> grants() }
	:: else -> goto refused
	fi;

held:	if
	:: atomic { believes[c] > 0 && renewals > 0 && (HELD == 0 || c == 0) -> renewals--; age[c] = 0; before = overtaken[c]; yes = 0; begins(); round(renew, 0) }
		do
		:: atomic { asked != ALL -> ask(renew) }
		:: DECIDED || c == 0 && asks != 0 -> break
		od;
		if
		:: atomic { SIZE(yes) >= MAJORITY && believes[c] > 0 && age[c] < TTL -> believes[c] = TTL - SENT; confirmed(); assert(!before) } /* promise 5 */
		:: else
		fi;
		atomic { age[c] = TTL; yes = 0; no = 0; asked = 0; before = false }
		goto held
	:: believes[c] > 0 && LAST > 0 -> goto died /* without time, who died is one who does nothing more */
	:: atomic { believes[c] == 0 -> goto refused } /* lost: Release says so, whatever nodes answer */
	:: atomic { believes[c] > 0 -> believes[c] = 0; age[c] = TTL; before = overtaken[c]; yes = 0; round(release, 0) } /* Release ends its context first */
	fi;
	do
	:: atomic { asked != ALL -> ask(release) }
	:: asked == ALL -> break
	od;
	atomic {
		assert(!(SIZE(yes) >= MAJORITY && before)); /* promise 3 */
		before = false;
		leaves()
	}
	goto next;

refused: /* rollBack */
	atomic {
		age[c] = TTL; wanted[c] = 0; have = 0; yes = 0; granted = 0;
		leaves();
		for (n : 0 .. NODES - 1) { given[n] = 0 };
		n = 0;
		round(release, 0)
	}
	do
	:: atomic { asked != ALL -> ask(release) }
	:: asked == ALL -> break
	od;
next:
	atomic { turns--; overtaken[c] = false; yes = 0; no = 0; asked = 0 }
	if
	:: turns > 0 -> goto acquire
	:: else -> goto leave
	fi;
died:
	atomic { believes[c] = 0; dirty = true; leaves() }
leave:
	gone++
}

/* Client 0 has just been granted by some nodes. A try may still be on its way to one that it missed. */
inline begin() {
	if
	:: HELD != ANY -> counts[0] = HELD
	:: HELD == ANY -> if :: counts[0] = 3 :: counts[0] = 5 :: counts[0] = 6 :: counts[0] = 7 fi
	fi;
	for (n : 0 .. NODES - 1) {
		if
		:: IN(counts[0], n) -> holder[n] = 0; left[n] = TTL; fence[n] = 1; max(fence[n], skew[n] * GRANTS); max(token, fence[n])
		:: else -> if :: losses > 0 -> losses--; late[n] = try :: true fi
		fi
	}
	for (n : 0 .. NODES - 1) {
		if :: IN(counts[0], n) && lifted < MAJORITY -> fence[n] = token; lifted++ :: else fi
	}
	lifted = 0;
	wanted[0] = token;
	believes[0] = TTL;
	age[0] = TTL;
	printf("client 0 holds by %d, token %d\n", counts[0], token);
	if :: STALE -> counts[0] = ALL :: else fi
}

init {
	byte n, lifted;
	atomic {
		skew[0] = SKEW; /* which one does not matter: they are alike */
		if :: HELD != 0 -> begin() :: else fi;
		run Clock();
		for (n : 0 .. NODES - 1) {
			run Restart(n);
			run Late(0, n);
			run Late(1, n);
			if :: REGAINS > 0 -> run Regain(n) :: else fi;
			if :: EVICTS > 0 -> run Evict(n) :: else fi
		}
		run Client(0);
		run Client(1)
	}
	gone == 2;
	assert(dirty || holder[0] == NOBODY && holder[1] == NOBODY && holder[2] == NOBODY) /* promise 4 */
}
