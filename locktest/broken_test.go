package locktest_test

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold/locktest"
)

type breakage struct {
	name    string
	rejects []string
	warp    warp
	harness func(p *warp, t testing.TB) locktest.Harness // nil: (*warp).harness
}

// run runs c against a fresh driver.
func (b *breakage) run(t *testing.T, c locktest.Case) *recorder {
	p, harness := b.warp, b.harness
	if harness == nil {
		harness = (*warp).harness
	}
	return record(t, c, harness(&p, t))
}

// broken lists drivers that are wrong in one way each, and the cases that must say so.
// Most were somebody's bug. Those that take longest to reject come first.
var broken = slices.Concat(brokenFaults, brokenNames, brokenTTLs, brokenWaits, brokenEnds, brokenFences, brokenViews, brokenLists, brokenRecalls, brokenWeights, brokenTogether)

// TestBrokenDriversAreRejected runs each case against the drivers that it must reject.
func TestBrokenDriversAreRejected(t *testing.T) {
	t.Parallel()
	rejected(t, 64, func(name string) bool { return !strings.Contains(name, "Goroutine") })
}

// What these cases count is the process's, so that nothing runs beside them.
func TestDriversThatLeaveGoroutinesAreRejected(t *testing.T) {
	rejected(t, 1, func(name string) bool { return strings.Contains(name, "Goroutine") })
}

// rejected runs the cases that are chosen, so many at once. What they accept runs once more, alone: beside many a case may
// come too late to see it.
func rejected(t *testing.T, atOnce int, chosen func(name string) bool) {
	cases := make(map[string]locktest.Case)
	for _, c := range locktest.Cases() {
		cases[c.Name] = c
	}
	var runs, again []func()
	var mu sync.Mutex // guards again
	for i := range broken {
		b := &broken[i]
		for _, name := range b.rejects {
			c, ok := cases[name]
			if !ok {
				t.Errorf("%s: there is no case %s", b.name, name)
				continue
			}
			if !chosen(name) {
				continue
			}
			attempts := func(most int) (failed bool) {
				t.Run(b.name+"/"+name, func(t *testing.T) {
					r := b.run(t, c)
					for tries := 1; !r.Failed() && tries < most; tries++ {
						r = b.run(t, c)
					}
					if failed = r.Failed(); !failed && most > 1 {
						t.Errorf("%s accepts it: %s", name, r.text())
					}
					t.Log(r.text())
				})
				return failed
			}
			runs = append(runs, func() {
				if attempts(1) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				again = append(again, func() { attempts(5) })
			})
		}
	}
	concurrently(atOnce, runs)
	for _, run := range again {
		run()
	}
}

func concurrently(n int, runs []func()) {
	queue := make(chan func())
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for run := range queue {
				run()
			}
		})
	}
	for _, run := range runs {
		queue <- run
	}
	close(queue)
	workers.Wait()
}

// TestEveryCaseRejectsSomething: a case that cannot fail is a defect.
func TestEveryCaseRejectsSomething(t *testing.T) {
	t.Parallel()
	rejected := make(map[string]bool)
	for i := range broken {
		for _, name := range broken[i].rejects {
			rejected[name] = true
		}
	}
	for _, m := range mutations {
		if m.rejects != storms { // is no case
			rejected[m.rejects] = true
		}
	}
	for _, c := range locktest.Cases() {
		if !rejected[c.Name] {
			t.Errorf("no broken driver is rejected by %s", c.Name)
		}
		delete(rejected, c.Name)
	}
	for name := range maps.Keys(rejected) {
		t.Errorf("there is no case %s", name)
	}
}
