// Package sqllock keeps locks in a SQL database that the program already has, through
// database/sql. It imports no client: the program opens the database with its own.
//
// A resource is a row. Acquiring a free resource exclusively is one statement, and so are its
// renewal and its release. The database's clock decides what has expired. Shared holders are in
// a record in the row. All calls that are not plain read the row as a record, change it, and
// write it back if it has not changed meanwhile. Calls of one process that meet share the read
// and the write, which go on for the others if the context of one of them ends.
//
// Each waiter has a row of its own, a place, in the order of the first attempts. A process keeps
// all places of its waiters by one periodic statement, its heartbeat. It answers them from
// memory until their turn, so the load on the database does not grow with the number of waiters.
// A place decides the order, never who holds. No transaction stays open if a process stops, and
// there is no session state.
//
// # Phases of a claim
//
// A claim is in one phase, which follows from the last answer about it.
//
//	phase    what is there            Try                               Release, Linger
//	idle     nothing, or what another one statement, then the row if    the row
//	         process left: resumed    that grants nothing
//	refused  nothing                  as idle                           the row
//	queued   a place                  nothing until it is woken, then   the place, then the row
//	                                  as idle                           if that found nothing
//	held     a lease of known fence   the row: the lease starts again   one statement, then the
//	                                                                    row if that found nothing
//	leaving  a lease or place that a  the row: a lease with another     the row
//	         release may have ended,  fence, which that release does
//	         or may end when it       not end, or the same place
//	         comes
//	over     nothing                  as idle                           nothing if it was released,
//	                                                                    the row if it was lost
//
//	answer   granted  refused  refused, with a place  renewed  released  lost   unknown
//	phase    held     refused  queued                 held     over      over   as it was; of a
//	                                                                            release: leaving
//
// "One statement" applies to exclusive claims without uncertain calls; all others use the row. A
// release may also grant the lock to a queued claim: it is held from the next call on. A call is
// uncertain if it has no answer and may still be served:
//
//   - a grant or a place by one statement: the release leaves a mark in the row, which refuses it.
//     A place that came before the mark is passed over, and the next heartbeat removes it, within
//     2 s. If the release has no answer either, the place may be granted a lease first, which lasts
//     no longer than the last heartbeat keeps places: 8 s;
//   - a write of the row: it fails once the row has changed, and the release changes it even if
//     there is nothing to give up.
//
// No release follows a refusal without a place. So that refusal leaves the mark, or changes the
// row.
//
// No other calls need care. A renewal by one statement only lengthens. A grant to the next in
// the queue needs its place, which the release removes first. A release by one statement names
// the fence that it ends.
//
// # Files
//
//	sqllock, tables             options; the driver's life cycle; its tables
//	claim, renewall             calls of a claim; RenewAll
//	batch                       grants and releases of many goroutines by one statement
//	change, row                 the row as a record: read, decide, write back
//	store                       statements, and how they wait for a busy database
//	dialect                     differences between databases
//	postgres, mysql, sqlite     statements of each
//	sqlite_file, sqlite_path    the file of SQLite
//	waiters, watcher            waiters, and their notification: polls the tables
//	listen, hearing             the messages of [Options.Listen]
//	recall                      notifies holders of waiters by these messages
//	beat                        the heartbeat, which keeps places and removes unused ones
//	astray                      connections that lead to a standby
//	guard                       CheckFence
//	inspect, check, check_*     inspection and checks for operators
//	files_*, netfs_*            file identity and file systems, per operating system
//	errors, shown               errors; printing without owners
package sqllock
