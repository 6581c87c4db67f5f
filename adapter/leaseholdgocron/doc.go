// Package leaseholdgocron runs the jobs of gocron on one scheduler of several.
//
// A [Locker] has each job ask for a lease when it is due, an [Elector] has one scheduler run all
// of them. Use one of both: gocron asks no Locker where it has an Elector.
//
// gocron tells a job nothing of its lock, and ignores what unlocking returns. So give it a job
// made by [Locker.Task] or [Elector.Task]: its context ends when the lease is lost, before another
// scheduler can begin the job, and it then fails with an error that matches
// [leasehold.ErrLost], which gocron's AfterJobRunsWithError hears. Any other job runs on beside
// the next one.
package leaseholdgocron
