// Package locktest is the conformance suite for drivers of Leasehold, and the checker
// of histories that its fault tests use.
//
// The author of a driver writes a Harness, which opens the engine, and calls Run; see the
// example. A case runs if the driver's Features, its optional interfaces and the harness offer
// what it needs. Otherwise it is skipped and says what is missing. The driver must refuse
// features that it does not declare with ErrUnsupported. With an Address, and with Main called
// from TestMain, cases also run with real processes that are killed and stopped.
//
// Faulty is a link that can fail, for tests of any program that uses a driver. History checks
// whether several holders believed at the same time that they held a lock.
package locktest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// A Harness connects the suite to one engine. Only Open is required.
type Harness struct {
	// Open connects to the engine as another process: every call returns another process's view
	// of the same state. The suite closes the driver by t.Cleanup. The harness must close a
	// client that it made for the driver, by a t.Cleanup of its own, which then runs after the
	// suite's.
	Open func(t testing.TB) driver.Driver

	// Sever cuts the link between d, which Open returned, and the engine, until heal is called.
	// Meanwhile calls hang until their context ends, or fail, and no Wake and no Lost arrives.
	// nil: the suite puts a Faulty in front of the driver instead.
	Sever func(t testing.TB, d driver.Driver) (heal func())
	// Pause makes the engine stop granting, renewing and releasing for everybody until
	// resume is called, without closing its connections: such calls hang.
	Pause func(t testing.TB) (resume func())
	// Restart stops the engine and starts it again with its state, and returns when it
	// answers.
	Restart func(t testing.TB)
	// FlushState makes the engine lose all stored data, and returns when it answers.
	FlushState func(t testing.TB)

	// Hang makes calls that concern name hang until resume is called, as if its server, slot or
	// row did not answer. Other calls are served. with reports which other names hang too; nil:
	// none.
	Hang func(t testing.TB, name string) (with func(other string) bool, resume func())

	// Forget makes the network forget all connections between d, which Open returned, and the
	// engine, like a firewall that restarts. They are silent from then on, without an error, and
	// new ones work.
	Forget func(t testing.TB, d driver.Driver)

	// Address lets a child process open the same engine: Main passes it to its open. Empty:
	// other processes cannot reach the engine.
	Address string

	// NoLossNotice declares that Request.Lost is not called on an eviction or a flush: the
	// holder learns of it at its next renewal.
	NoLossNotice bool
	// Late is how much longer than its TTL the engine may keep a lease that is not renewed,
	// because its clock is coarse. The holder's deadline has long passed by then.
	Late time.Duration
	// NoHolderFence declares that Inspect and Busy show holders with fence 0, because
	// only the holder itself knows its fence.
	NoHolderFence bool
	// ShownOwner returns what Inspect and Busy show instead of a whole owner that the engine
	// keeps secret. nil: the owner.
	ShownOwner func(owner string) string
	// FixedTTL declares that a claim keeps the TTL it was made with: Renew with another one
	// is ErrUnsupported.
	FixedTTL bool
	// NeverShortens declares that a Renew with a shorter TTL does not shorten the engine's
	// lease, although its holder relies on the shorter one. If the holder dies, others wait
	// longer.
	NeverShortens bool
	// CallGoroutines is how many goroutines one call to the driver takes, for a driver
	// that asks several engines at once; 0: at most one.
	CallGoroutines int
}

// Margin is how late an answer, a wake-up or an expiry may come before a case fails. It is long
// because the machines that run tests are slow and busy, not because engines may be. Cases that
// pass do not wait for it. It is below the time after which the core asks again by itself.
const Margin = 4 * time.Second

// aWhile is how long a case waits itself: for what must not happen, or is to be refused.
const aWhile = time.Second

// A Case is one property that every driver must have, if it has what the case needs.
type Case struct {
	Name  string // of its subtest
	Needs Need   // what it is skipped without
	Alone bool   // disturbs, loads or measures the engine or the process: nothing may run beside it
	// Run fails t when the driver does not have the property. It may be called with any
	// testing.TB, such as a recorder, by a harness that offers what the case needs.
	Run func(t testing.TB, h Harness)
}

// Cases returns all cases of the suite.
func Cases() []Case {
	var all []Case
	for _, file := range [][]Case{
		nameCases, exclusiveCases, ttlCases, waitingCases, releaseCases, renewalCases, lossCases,
		fencingCases, sharedCases, weightCases, limitCases, inspectCases, listCases, severalCases, faultCases, barredCases, recallCases, keepCases, hangCases, togetherCases, forgottenCases, processCases, resourceCases,
	} {
		all = append(all, file...)
	}
	return all
}

// Run runs each case as a subtest of t. It must not be called from a parallel test: some
// cases count the goroutines of the process.
func Run(t *testing.T, h Harness) {
	run(t, offers(t, h), togetherOn(t, h), func(t *testing.T, c Case) { c.Run(t, h) })
}

// RunBubbled runs each case as Run does, in a bubble of testing/synctest. Waiting then takes no
// time, and other load on the machine does not delay a case. Cases that measure the process
// itself run without. It is for engines inside the process, which make no blocking system calls
// and never hold a mutex for long. harness is called for each case, in its bubble.
func RunBubbled(t *testing.T, harness func() Harness) {
	run(t, offers(t, harness()), func() int { return runtime.GOMAXPROCS(0) }, func(t *testing.T, c Case) {
		if c.Alone {
			c.Run(t, harness())
			return
		}
		synctest.Test(t, func(t *testing.T) { c.Run(t, harness()) })
	})
}

// run runs the cases whose needs are offered as subtests. Several run at once, except those that
// must run alone. Before each case it asks several how many may run.
func run(t *testing.T, offered Need, several func() int, runCase func(*testing.T, Case)) {
	one := func(c Case) {
		t.Run(c.Name, func(t *testing.T) {
			if missing := c.Needs &^ offered; missing != 0 {
				t.Skipf("needs %v", missing)
			}
			runCase(t, c)
		})
	}
	queue := make(chan Case)
	go func() {
		defer close(queue)
		for _, c := range Cases() {
			if !c.Alone {
				queue <- c
			}
		}
	}()
	var workers sync.WaitGroup
	others := 0
	workers.Go(func() {
		for c := range queue {
			for ; others+1 < several(); others++ {
				workers.Go(func() {
					for c := range queue {
						one(c)
					}
				})
			}
			one(c)
		}
	})
	workers.Wait()
	for _, c := range Cases() {
		if c.Alone {
			one(c)
		}
	}
	if text := skipped(offered); text != "" {
		fmt.Printf("%s: %s\n", t.Name(), text) // not t.Log: a test that passes does not show its log
	}
}

// skipped returns how many cases an engine that offers this cannot run, and what they need.
func skipped(offered Need) string {
	var n int
	var want Need
	for _, c := range Cases() {
		if missing := c.Needs &^ offered; missing != 0 {
			n, want = n+1, want|missing
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d cases skipped, for want of %v", n, len(Cases()), want)
}

// togetherOn returns a function that returns how many cases may run at once. Cases mostly wait for
// leases to expire, so the number does not follow the number of processors as -parallel does. But a
// case that loads the engine delays the others, so it is lower if a call takes more than a
// millisecond. It is one while the machine is so busy that leases would end during the calls of a
// case. The function measures again after some seconds, because a machine that builds programs is
// busy only for a while.
func togetherOn(t testing.TB, h Harness) func() int {
	const calls, slow, busy, many, few, again = 20, time.Millisecond, 20 * time.Millisecond, 8, 4, 5 * time.Second
	c := contend(t, open(t, h), request(newName(t)))
	n, measured := 1, time.Time{}
	return func() int {
		start := time.Now()
		if n == many || start.Sub(measured) < again {
			return n
		}
		for range calls / 2 {
			if _, err := c.try(); err != nil || c.release() != nil {
				return n // the cases report such errors
			}
		}
		measured = time.Now()
		switch took := measured.Sub(start); {
		case took > calls*busy:
		case took > calls*slow:
			n = max(n, few)
		default:
			n = many
		}
		return n
	}
}
