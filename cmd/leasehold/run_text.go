//go:build unix

package main

const runLong = `Run COMMAND while holding the lock NAME, and exit with COMMAND's exit code. The
lease is renewed while COMMAND runs and released when it ends. If renewals fail,
COMMAND and what it started are ended before anyone else can hold NAME, even if
"leasehold run" was killed. An eviction or a failover may let the next holder in
sooner. Processes of other users, and containers, are out of reach. Other exit
codes include 1 busy, 69 store unusable, 75 lease over, 77 access denied.

# When the lease is lost
A lease is lost if it cannot be renewed in time, because the store does not answer or
refuses writes, or because this machine is too slow. COMMAND and everything it started then
get SIGTERM and, --grace later, SIGKILL. This happens early enough that all these processes
are gone before anyone else can hold NAME. With the defaults, SIGTERM comes 7.7 s after the
last renewal, and renewals are 3.3 s apart. A longer --ttl outlasts longer failures. A
longer --grace, of up to nearly half of the TTL, makes SIGTERM come earlier.

A lease is also lost if someone evicts it, or if the store loses it, as in a failover.
"leasehold run" learns of that at its next renewal at the latest, within a third of the
TTL, and ends COMMAND in the same way. Another process may hold NAME by then. Only the
fencing token (LEASEHOLD_TOKEN) then tells their writes apart. A lease with --once-per is
not renewed: unless the store notifies "leasehold run", COMMAND continues.

Standard error says when COMMAND is being ended, and when it has ended. Two kinds of
processes are out of reach: processes of another user, which standard error names, and
those that another service runs for COMMAND (systemd-run, at, a container engine).

On Linux a lease counts the time that the machine sleeps. If the lease ended
meanwhile, COMMAND is ended when the machine wakes up; another process may hold the lock
by then. On other systems, such as macOS, COMMAND continues until the next renewal fails
or the deadline passes, but for no longer than the machine slept.

# When leasehold run is killed
A guardian process, lock-guardian, then ends COMMAND in the same way. It does so at once if
"leasehold run" was killed, even with -9, and shortly before the lease ends if it was
stopped. On Linux "killall leasehold" and "pkill -f leasehold" do not reach the guardian.
"killall /usr/bin/leasehold" does, because it matches by file. If both are killed at once,
COMMAND is killed too, but not the processes that it started. Only the fencing token then
tells their writes from the next holder's.

The lock is released as soon as nothing of COMMAND is left, so that nobody waits for
the TTL. With --at-least it stays held for the rest of that time, with --once-per until
the lease ends. Nothing is released if "leasehold run" was stopped, if its guardian was
killed too, or if the store stays unreachable. The lock is then held until the TTL is over,
even if --at-least asks for longer. On ZooKeeper and Redlock nothing is ever released after a
kill, because no other process can release such a lease.

If only the guardian is killed, COMMAND and what it started are killed too. The lock is
released, and the exit code is 70. If only the guardian is stopped, COMMAND continues.
"leasehold run" warns after a few seconds and resumes the guardian with SIGCONT. If that
does not help, "leasehold run" itself ends what COMMAND leaves running and releases the
lock when COMMAND ends. COMMAND's exit code is not affected.

# When COMMAND ends
The lock is released. Unlike with flock(1), what COMMAND leaves running in the
background is ended too (SIGTERM, --grace, SIGKILL), because the lock would no longer
cover it.

If the store does not answer, "leasehold run" says so after 5 s and exits with
COMMAND's exit code. The lock is then held until its TTL is over. With --at-least,
--at-most or --retry-on-failure, "leasehold run" keeps trying until the lease ends by
itself or --at-least is over, and says until when. If that fails, standard error says
what follows: COMMAND may run again too soon or, with --retry-on-failure, NAME stays held
until then.

# Waiting
Without -n and -w there is no limit. Both limit the whole time until NAME is held,
connecting included. A store that does not answer is given up after 3 to 10 s, depending
on the engine. With -n it gets at most 2 s, with -w at most TIME or 2 s, whichever is longer.
The exit code is then 69. Without -n, -w and
--once-per, NAME is never found busy. A TIME without a unit is in seconds: 2.5, 90s, 5m.

If the store fails during the wait, "leasehold run" says why, keeps waiting, and says
when the store answers again. On a terminal, unless TERM=dumb, the last line shows
for how long it has waited, who holds NAME, and its place in the queue.

The one-letter flags mean the same as in flock(1).

# Limits
With --limit N, NAME is a semaphore: its holders together use at most N. --slots N is the
same. Each holder uses 1, or W with --weight W: the gigabytes that a job needs, for example.
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
With --yield, COMMAND gets SIGNAL once, when others wait for NAME or for one of the other
names. It should then finish its step and exit. When it does, the lock is released, and the
first in the queue gets it. If it continues, nothing ends it. A caller with -n does not
count as waiting. --on-wanted runs a hook at the same moment.
docs/yield.md has an example.

Only COMMAND itself gets SIGNAL, not what it has started. On Linux SIGNAL is held back
until COMMAND has a handler for it, because it would kill a COMMAND that has just
started. Standard error says so if that takes more than 5 s. On other systems SIGNAL is
sent at once.

Most stores report waiters at once, the others at the next renewal, at most a third of
the TTL later. Redlock and memcached cannot report them, so they refuse --yield and --on-wanted.

# Once per period
With --once-per, COMMAND runs once in each PERIOD, however many servers start it, and even
if their clocks differ by minutes. NAME is held for nine tenths of PERIOD from the start.
Anyone who asks meanwhile is refused as busy, at once, so -w limits only the wait for the
store. The last tenth is for servers that start the next run a little early: two starts may
be nine tenths of PERIOD apart. Use the same PERIOD everywhere. "leasehold show" shows who
ran COMMAND, when, and with which exit code. "leasehold reset" lets it run again before its
time.

The lease is not renewed. If "leasehold run" is killed, nothing is released. Nobody else
runs COMMAND before the lease ends, which is after the nine tenths. With --at-most it ends
earlier, and COMMAND may then run again in the same PERIOD.

If the store cannot be reached, COMMAND is not run, and "leasehold run" exits with 69. NAME
may have been granted all the same, if only the answer was lost. Others are then refused as
busy for up to 10 s, or longer if the store went away at that moment. So COMMAND may not run
at all in this PERIOD, unless it is started again.

With --retry-on-failure, NAME is free after any exit code but 0, even after a signal or
--at-most. The next one to start COMMAND within PERIOD then runs it again.

--at-most and --retry-on-failure need --once-per. It excludes --ttl, --at-least, --yield,
--on-wanted and the flags that share NAME. It excludes --also, because the other names would
be held for all of PERIOD. COMMAND can hold them with a "leasehold run" of its own.

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
  LEASEHOLD_DEADLINE  when the lease ends if it is not renewed after the start; for people
  LEASEHOLD_STORE     the store, without its password
  LEASEHOLD_HELD      the owners of all enclosing runs; a nested run of the same NAME is refused, even if shared, because it would wait for itself
  LEASEHOLD_NAMES     the names that they hold, a line per run: its store and its names, separated by tabs

# Exit codes
  N      COMMAND's own
  128+n  signal n ended COMMAND or the wait
  1      NAME is busy, or the wait was removed from the queue (-E, --busy-exit-code)
  64     wrong usage, or a weight above the limit
  69     the store is unreachable, read-only or full
  70     internal error, or the guardian was killed
  75     the lease was lost (--lost-exit-code), or --at-most ended COMMAND
  77     the store denies access: wrong password, or a missing right
  126    COMMAND cannot be run
  127    COMMAND was not found

COMMAND may exit with the same codes. -E and --lost-exit-code change 1 and 75; the others
are fixed.

When Ctrl-C ends COMMAND or a wait, "leasehold run" ends by SIGINT too, and a shell stops
its script, as with flock(1). The same happens if COMMAND catches SIGINT and exits with 130.
With any other exit code the script continues.

# Files and signals
COMMAND inherits standard input, output and error, and all other open files. TERM, INT,
HUP, QUIT, USR1, USR2 and WINCH are passed on to COMMAND. If COMMAND goes on, nothing else
ends it, and the lease is renewed. During a wait for the lock, or for the store after
COMMAND has ended, the first four end the wait.

Ctrl-Z suspends COMMAND and "leasehold run" together. The lease is then not renewed, so
COMMAND is ended as when the lease is lost. To prevent that, resume it in time: with the
defaults, within 4.4 s.

# Hooks
--on-acquire, --on-lost and --on-wanted notify you. $SHELL, or /bin/sh, runs STRING with the
environment of COMMAND. Its input is empty, and it writes to standard error. After 10 s it is
killed with its process group. --on-acquire runs beside COMMAND. --on-lost runs after the
lease was lost, or --at-most was over, and COMMAND is gone; LEASEHOLD_LOST is the reason.
--on-wanted runs beside COMMAND, once, when others wait; LEASEHOLD_WANTED is the name that
they wait for.

Only the exit of "leasehold run" waits for hooks. A signal ends that wait after a second, even
one that has ended COMMAND. Hooks do not change its exit code; if one fails or cannot be killed,
standard error says so. The lock does not cover hooks, so they must not write what it guards. If
"leasehold run" is killed, they keep running, and no more are started.

# Metrics
With --metrics-file, FILE has gauges of the last run, for the textfile collector of
Prometheus' node exporter. Their label is "name". They are leasehold_run_held, _waiting,
_wait_seconds, _hold_seconds, _start_timestamp_seconds, _success_timestamp_seconds (kept
when later runs fail), _renewal_failures, _lost, and _exit_code at the end. Use one FILE
for each NAME, and let it end in .prom. If runs overlap, FILE has the state of the one that
wrote last, and the last success of any.

FILE is replaced as a whole at each change. Only the exit of "leasehold run" waits for
that, for at most a second. If FILE cannot be written, standard error says so
once, and COMMAND runs all the same.

# Output
"leasehold run" writes nothing to standard output. With --json an error is one JSON
object on standard error. So are warnings, the event "recovered" of a wait, and a release
that the store has not confirmed.

With -v each event has a line with the time. With -v and --json the line is an object with
"time", "event" and "text". Events are store, warning, waiting, recovered, acquired,
renewal_failed, wanted, ending, exited, released and error.`

const runExample = `  leasehold run backup -- ./backup.sh
  leasehold run -n --ok-if-busy report -- make report      # for cron
  leasehold run stock/3 --also stock/7 -- ./move           # both or neither
  leasehold --store redis://host run --once-per 24h --ok-if-busy sum -- ./sum`

const runFlags = `Waiting: no-wait wait ok-if-busy busy-exit-code
Lock: key also shared limit ttl at-least
Once per period: once-per at-most retry-on-failure
Command: command grace yield`
