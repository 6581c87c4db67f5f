// Package sqllock keeps locks in a SQL database that the program has anyway, through
// database/sql. It imports no client: the program opens the database with its own.
//
// A resource is a row. An exclusive acquire of a free resource is one statement, and so
// is its renewal and release; the database's clock decides what has expired. Who shares is in
// a record in the row. All that is not plain reads the row as a record, has it changed, and
// writes it if nobody else did meanwhile. Who waits has a row of its own, a place, in the order
// of the first attempt. A process that waits keeps all of its places by one statement, its beat,
// and answers its waiters from memory until their turn has come: what a crowd costs the database
// does not grow with the crowd. A place decides the order, never who holds. There is no transaction that a
// stopped process could leave open, and no session state.
//
// # Phases of a claim
//
// A claim is in one phase, which is what the last answer about it said.
//
//	phase    what is there            Try                               Release, Linger
//	idle     nothing, or what another one statement, then the row if    the row
//	         process left: resumed    that grants nothing
//	refused  nothing                  as idle                           the row
//	queued   a place                  nothing until it is woken, then   the place, then the row
//	                                  as idle                           if that found nothing
//	held     a lease of known fence   the row: the lease starts again   one statement, then the
//	                                                                    row if that found nothing
//	leaving  a lease that a release   the row: a lease with another     the row
//	         may have ended, or may   fence, which that release does
//	         end when it comes        not end
//	over     nothing                  as idle                           the row
//
//	answer   granted  refused  refused, with a place  renewed  released  lost   unknown
//	phase    held     refused  queued                 held     over      over   as it was; of a
//	                                                                            release: leaving
//
// "One statement" is for exclusive claims with nothing uncertain; all else goes to the row. A
// grant may also be brought to a claim that is queued, by whoever releases: it is held from
// the next call on. Uncertain are calls that have no answer and may still be served:
//
//   - a grant or a place by one statement: the release leaves a mark in the row, which refuses it. Where it does not
//     refuse a place, nobody but its owner could take the lease, and the next beat removes it;
//   - a write of the row: it comes to nothing once the row has changed, and the release
//     changes it even if there is nothing to give up.
//
// Nothing else needs care: a renewal by one statement only lengthens, a grant to who is next
// needs its place, which the release removes first, and a release by one statement names the fence that it ends.
//
// # Files
//
//	sqllock, tables             options, and the driver from its begin to its end; its tables
//	claim, renewall             calls of a claim; RenewAll
//	batch                       grants and releases of many goroutines by one statement
//	change, row                 the row as a record: read, decided by, written
//	store                       statements, and how they wait for a database that is busy
//	dialect                     what differs between databases
//	postgres, mysql, sqlite     statements of each
//	sqlite_file, sqlite_path    the file of SQLite
//	waiters, watcher            who waits, and who is woken: polls the tables
//	listen, hearing             what [Options.Listen] hears
//	beat                        what keeps places, and which are of nobody
//	astray                      connections that lead to a standby
//	guard                       CheckFence
//	inspect, check, check_*     what operators ask for
//	files_*, netfs_*            what a system tells of a file
//	errors, shown               what errors mean; what prints in place of owners
package sqllock
