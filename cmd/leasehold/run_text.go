//go:build unix

package main

const runLong = `Run COMMAND while holding the lock NAME, and exit with COMMAND's exit code. The
lease is renewed while COMMAND runs and released when it ends. If it cannot be
renewed, COMMAND and what it started are ended before anyone else can hold NAME,
even if "leasehold run" itself was killed. Other exit codes: 1 busy,
69 store unreachable, 75 lease lost, 77 access denied.

# When the lease is lost
A lease is lost if it cannot be renewed in time. The store may not answer, or accept no
writes, or this machine may be too slow. COMMAND and everything it started then get SIGTERM
and, --grace later, SIGKILL. This happens early enough that all these processes are gone
before anyone else can hold NAME. With the defaults, SIGTERM comes 7.7 s after the last
renewal, and renewals are 3.3 s apart. A longer --ttl outlasts longer failures.

A lease is also lost if someone evicts it, or if the store loses it, as in a failover.
"leasehold run" learns of that at its next renewal at the latest, within a third of the
TTL, and ends COMMAND in the same way. Another may hold NAME by then. Only the token
tells their writes apart.

Standard error says when COMMAND is being ended, and when it has ended. Two kinds of
processes are out of reach: processes of another user, and those that another service
runs for COMMAND (systemd-run, at, a container engine).

On Linux a lease counts the time that the machine sleeps. If the lease ended
meanwhile, COMMAND is ended when the machine wakes up; another may hold the lock by
then. On other systems, such as macOS, COMMAND may continue for as long as the
machine slept, until the next renewal or the deadline.

# When leasehold run is killed
A guardian process, lock-guardian, ends COMMAND in the same way if "leasehold run"
is killed or stopped, even with -9 or -STOP. On Linux "killall leasehold" and
"pkill -f leasehold" do not reach the guardian. "killall /usr/bin/leasehold" does,
because it matches by file. If both are killed at once, COMMAND is killed too, but not
the processes that it started. Only the token then tells their writes from the next
holder's.

The lock is released as soon as nothing of COMMAND is left, so that nobody waits for
the TTL. With --at-least it stays held for the rest of that time, with --once-per until
the lease ends. It is held for the TTL instead, whatever --at-least says, if "leasehold
run" was stopped, if its guardian was killed too, or if the store stays unreachable. On
ZooKeeper the lock is always held for the TTL, because only the end of the session
releases it.

If only the guardian is stopped, COMMAND continues. "leasehold run" warns after a few
seconds and resumes the guardian with SIGCONT. If that does not help, "leasehold run"
itself ends what COMMAND leaves running and releases the lock when COMMAND ends.
COMMAND's exit code is not affected.

# When COMMAND ends
The lock is released. Unlike with flock(1), what COMMAND leaves running in the
background is ended too (SIGTERM, --grace, SIGKILL), because the lock would no longer
cover it.

If the store does not answer, "leasehold run" says so after 5 s and exits with
COMMAND's exit code. The lock is then held until its TTL is over. With --at-least,
--at-most or --retry-on-failure, "leasehold run" keeps trying until the lease ends by
itself, and says until when. If that fails, standard error says that COMMAND may run
again too soon.

# Waiting
Without -n and -w there is no limit. Both limit the whole time until NAME is held,
connecting included. A store that does not answer has 2 s with -n, and with -w TIME or
2 s, whichever is longer. Otherwise it has 3 to 10 s, depending on the engine. Then the
exit code is 69.

If the store fails during the wait, "leasehold run" says why, keeps waiting, and says
when the store answers again. On a terminal, unless TERM=dumb, the last line shows
for how long it has waited, who holds NAME, and its place in the queue.

The letters of the flags mean the same as for flock(1).

# Limits
With --limit N, those who share NAME use at most N of it together, as a semaphore;
--slots N is the same. Each uses 1, or W with --weight W, such as the memory of a job.
If holders give different limits, the smallest counts, and standard error warns of it. A
limit that an operator has set with "leasehold limit" counts too. The first in the queue
goes first, even if it is heavy and there is room for light ones behind it.

--limit NAME=N gives one name a limit of its own, and --weight NAME=W a weight. Both add
that name to those that COMMAND needs, all or nothing, and may be repeated. The argument
NAME may then be left out:
  leasehold run --limit tenant/7=2 --limit total=100 --weight total=3 -- ./job

# Several locks
With --also, COMMAND runs when NAME and all the others are held: all or nothing, in an
order that never deadlocks. COMMAND is ended when any of them is lost. --at-least keeps
all of them held, not only NAME.

# Giving way
With --yield, COMMAND gets SIGNAL when others wait for NAME, or for one of the other
names, but only one time. It finishes its step and exits by itself. The lock is then
released, and the first in the queue gets it. If COMMAND continues, nothing ends it. A
caller with -n does not count as waiting. --on-wanted runs a hook at the same moment.
docs/yield.md has an example.

Only COMMAND itself gets SIGNAL, not what it has started. On Linux SIGNAL is held back
until COMMAND has a handler for it, because it would kill a COMMAND that has just
started. Standard error says so if that takes more than 5 s. On other systems SIGNAL is
sent at once.

Most stores report waiters at once, the others at the next renewal, at most a third of
the TTL later. Redlock and memcached cannot report them, so they refuse both flags.

# Once per period
With --once-per, COMMAND runs at most once in each PERIOD, however many servers start
it, and even if their clocks differ by minutes. NAME is held for nine tenths of PERIOD
from the start. Anyone who asks meanwhile is refused as busy, at once (see
--ok-if-busy), so -w limits only the wait for the store. Use the same PERIOD everywhere.
"leasehold show" shows who ran COMMAND, when, and with which exit code. "leasehold
reset" lets it run again before its time.

The lease is not renewed. If "leasehold run" is killed, nothing is released: nobody
else runs COMMAND before the lease ends, which is after --at-most, or else after the
nine tenths. If the store cannot be reached, COMMAND is not run, and "leasehold run" exits
with 69. Others may then have to wait for up to 10 s, or longer if the store went away at
the moment of the grant.

With --retry-on-failure, a COMMAND that fails leaves NAME free, so that the next one to
start it within PERIOD runs it again. --also and --once-per exclude each other, as the
other names would be held for all of PERIOD. COMMAND can hold them with a "leasehold
run" of its own.

# Who holds NAME
"leasehold ls" and "leasehold show" print the host, the user, COMMAND's name and process
id, and what --note, --link and --label say. In a job of GitHub Actions, GitLab CI,
Jenkins, Buildkite or CircleCI, the link is the job's page unless --link gives another.
COMMAND's arguments are not shown.

# Environment
COMMAND has these variables:
  LEASEHOLD_NAME      NAME
  LEASEHOLD_TOKEN     the fencing token: larger than every earlier holder's
  LEASEHOLD_TOKENS    the tokens of all names, one "TOKEN NAME" per line
  LEASEHOLD_OWNER     the secret that renews and releases the lease
  LEASEHOLD_DEADLINE  when the lease ends unless it is renewed, for people
  LEASEHOLD_STORE     the store, without its password
  LEASEHOLD_HELD      the owners of all enclosing runs; a nested run of the same NAME is refused, even if shared, because it would wait for itself

# Exit codes
  N      COMMAND's own
  128+n  signal n ended COMMAND or the wait
  1      NAME is busy (-E, --busy-exit-code)
  64     wrong usage, or a weight above the limit
  69     the store is unreachable, read-only or full
  70     internal error
  75     the lease was lost (--lost-exit-code), or --at-most ended COMMAND
  77     the store denies access: wrong password, or a missing right
  126    COMMAND cannot be run
  127    COMMAND was not found

COMMAND may exit with the same codes. -E and --lost-exit-code tell them apart.

When Ctrl-C ends COMMAND or a wait, "leasehold run" ends by SIGINT too. A shell shows
that as 130 and stops its script, as with flock(1). The same happens if COMMAND catches
SIGINT and exits with 130. With any other exit code the script continues.

# Files and signals
COMMAND inherits standard input, output and error, and all other open files. TERM, INT,
HUP, QUIT, USR1, USR2 and WINCH are passed on to COMMAND. During a wait for the lock, or
for the store after COMMAND has ended, the first four end the wait.

Ctrl-Z suspends COMMAND and "leasehold run" together. The lease is then not renewed,
so COMMAND is ended unless it is resumed within the TTL.

# Hooks
--on-acquire, --on-lost and --on-wanted notify you. $SHELL, or /bin/sh, runs STRING with the
environment of COMMAND. Its input is empty, and it writes to standard error. After 10 s it is
killed with its process group. --on-acquire runs beside COMMAND. --on-lost runs after the
lease was lost and COMMAND is gone, with the reason in LEASEHOLD_LOST. --on-wanted runs
beside COMMAND, once, when others wait; LEASEHOLD_WANTED is the name that they wait for.

Renewals, the end of COMMAND and the release do not wait for hooks. Only "leasehold run"
waits for them, before it exits. Hooks do not change its exit code; if one fails,
standard error says so. The lock does not cover hooks, so they must not write what it
guards. If "leasehold run" is killed, they keep running.

# Metrics
With --metrics-file, FILE has gauges of the last run, for the textfile collector of
Prometheus' node exporter. Their label is "name". They are leasehold_run_held, _waiting,
_wait_seconds, _hold_seconds, _start_timestamp_seconds, _success_timestamp_seconds (kept
when later runs fail), _renewal_failures, _lost, and _exit_code at the end. Use one FILE
for each NAME, and let it end in .prom.

FILE is replaced as a whole at each change. Nothing waits for that but the exit of
"leasehold run", for at most a second. If FILE cannot be written, standard error says so
once, and COMMAND runs all the same.

# Output
"leasehold run" writes nothing to standard output. With --json an error is one JSON
object on standard error, and so is each warning during a wait (warning, recovered).

With -v each line has the time. There are lines for the store and what is wrong with it,
the wait and who holds NAME, the grant, failed renewals and the release. Others who wait,
--yield and what COMMAND has left running have lines too. With -v and --json each line is an object with
"time", "event" and "text". Events are store, warning, waiting, recovered, acquired,
renewal_failed, wanted, ending, exited, released and error.`

const runExample = `  leasehold run backup -- ./backup.sh
  leasehold run -n --ok-if-busy report -- make report      # for cron
  leasehold run stock/3 --also stock/7 -- ./move           # both or neither
  leasehold --store redis://host/0 run --once-per 24h report -- ./report`

const runFlags = `Waiting: no-wait wait ok-if-busy busy-exit-code
Lock: key also shared limit ttl at-least
Once per period: once-per at-most retry-on-failure
Command: command grace yield on-lost`
