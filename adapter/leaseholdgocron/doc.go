// Package leaseholdgocron runs each job of gocron on only one of several schedulers.
//
// With a [Locker], each job that is due takes a lease. With an [Elector], one scheduler runs all
// jobs. Use one or the other: gocron ignores the Locker if it has an Elector.
//
// gocron does not pass the lock to a job, and ignores errors of unlocking. So wrap the job in
// [Locker.Task] or [Elector.Task]. Its context ends when the lease is lost, before another
// scheduler can start the job. The job then fails with an error that matches [leasehold.ErrLost],
// and gocron calls AfterJobRunsWithError. A job that is not wrapped keeps running beside the next.
package leaseholdgocron
