package leaseholdgocron_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdgocron"
	"github.com/leasehold-go/leasehold/memory"
)

// Each machine has the same program, and one of them runs the job.
func ExampleNewLocker() {
	locks, err := leasehold.New(memory.New(), nil) // any engine that the machines have in common
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	locker := leaseholdgocron.NewLocker(locks, leasehold.AtLeast(time.Minute)) // clocks may differ by a minute
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan bool)
	report := func(ctx context.Context) error { // stops when ctx ends
		fmt.Println("writing the report")
		close(done)
		return nil
	}
	_, err = scheduler.NewJob(
		gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), // or gocron.CronJob("0 3 * * *", false)
		gocron.NewTask(locker.Task("report", report)),
		gocron.WithName("report"),
	)
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	<-done
	if err := scheduler.Shutdown(); err != nil {
		log.Fatal(err)
	}
	// Output: writing the report
}

// One machine of several runs all jobs, until it is gone.
func ExampleNewElector() {
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	elector := leaseholdgocron.NewElector(locks, "schedulers")
	defer elector.Close() // ends the term, and waits for its tasks
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	report := func(ctx context.Context) error { return nil } // stops when ctx ends
	_, err = scheduler.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(elector.Task(report)))
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	if err := scheduler.Shutdown(); err != nil {
		log.Fatal(err)
	}
}
