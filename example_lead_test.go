package leasehold_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
)

// One of many processes schedules. When it dies, or resigns, another does.
func ExampleLocker_Lead() {
	ctx, shutdown := context.WithCancel(context.Background())
	locks, _ := leasehold.New(memory.New(), nil)
	terms := 0
	var last uint64
	err := locks.Lead(ctx, "scheduler", func(term context.Context) error {
		lease, _ := leasehold.FromContext(term) // its token goes along with each write
		terms++
		fmt.Println("term", terms, lease.Token() > last)
		last = lease.Token()
		if terms == 2 {
			shutdown()
		} else {
			locks.Resign("scheduler") // such as an operator asks for
		}
		<-term.Done() // the lease is over: stop, then return
		return nil
	})
	fmt.Println("shut down:", errors.Is(err, context.Canceled))
	// Output:
	// term 1 true
	// term 2 true
	// shut down: true
}

// A dashboard asks for the present leader, and for each that follows.
func ExampleLocker_Observe() {
	ctx := context.Background()
	locks, _ := leasehold.New(memory.New(), nil)
	go locks.Lead(ctx, "scheduler", func(term context.Context) error {
		<-term.Done()
		return nil
	}, leasehold.Note("web1"))
	for leader, err := range locks.Observe(ctx, "scheduler", leasehold.DefaultTTL/1000) {
		if err == nil && leader.Owner.Reveal() != "" {
			fmt.Println("led by", leader.Note)
			break
		}
	}
	// Output: led by web1
}
