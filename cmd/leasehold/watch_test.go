package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/memory"
)

// blurred is a store in which the record of "job" can be damaged.
type blurred struct {
	*memory.Driver
	damaged atomic.Bool
	omits   atomic.Bool   // List, "job" without an error
	denies  atomic.Bool   // Inspect
	hangs   atomic.Bool   // Inspect, until its context ends
	delay   time.Duration // of Inspect
}

var errBlurred = fmt.Errorf("record of \"job\": %w", driver.ErrCorrupt)

func (d *blurred) Inspect(ctx context.Context, name string) (driver.State, error) {
	if d.hangs.Load() {
		<-ctx.Done()
		return driver.State{}, ctx.Err()
	}
	time.Sleep(d.delay)
	if d.denies.Load() {
		return driver.State{Resource: name}, driver.ErrDenied
	}
	if d.damaged.Load() && name == "job" {
		return driver.State{Resource: name}, errBlurred
	}
	return d.Driver.Inspect(ctx, name)
}

func (d *blurred) List(ctx context.Context, prefix, after string, limit int) ([]driver.State, string, error) {
	states, next, err := d.Driver.List(ctx, prefix, after, limit)
	if err == nil && d.damaged.Load() {
		states, err = slices.DeleteFunc(states, func(s driver.State) bool { return s.Resource == "job" }), errBlurred
	}
	if d.omits.Load() {
		states = slices.DeleteFunc(states, func(s driver.State) bool { return s.Resource == "job" })
	}
	return states, next, err
}

// A lock whose record was damaged is not free. The damage is reported, and hides no other change.
func TestWatchedListDoesNotCallDamagedFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &blurred{Driver: memory.New()}
		claims := map[string]driver.Claim{}
		for _, name := range []string{"job", "other"} {
			claims[name] = claimtest.New(t, d, driver.Request{Resource: name, Owner: "o", TTL: time.Hour})
			claimtest.Granted(t, claims[name])
		}
		out, says := watched(t, d)
		sees := func(damages int, last string) {
			t.Helper()
			time.Sleep(3 * topEvery)
			synctest.Wait()
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if !strings.Contains(lines[len(lines)-1], last) || strings.Count(says.String(), `"job"`) != damages {
				t.Errorf("want %q, and %d times the damage:\n%s\n%s", last, damages, out, says)
			}
		}
		sees(0, "other is held")
		d.damaged.Store(true)
		sees(1, "other is held")
		claimtest.Released(t, claims["other"])
		sees(1, "other is free")
		d.damaged.Store(false)
		sees(1, "other is free")
		d.damaged.Store(true)
		claimtest.Released(t, claims["job"])
		sees(2, "other is free")
		d.damaged.Store(false)
		sees(2, "job is free")
	})
}

// A lock that the list leaves out is not free, as in a cluster that moves its key. If it may not be
// inspected, nothing is known of it.
func TestWatchedListDoesNotCallUnlistedFree(t *testing.T) {
	for name, denies := range map[string]bool{"held": false, "denied": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &blurred{Driver: memory.New()}
				claim := claimtest.New(t, d, driver.Request{Resource: "job", Owner: "o", TTL: time.Hour})
				claimtest.Granted(t, claim)
				out, says := watched(t, d)
				time.Sleep(3 * topEvery)
				d.denies.Store(denies)
				d.omits.Store(true)
				time.Sleep(3 * topEvery)
				synctest.Wait()
				if strings.Contains(out.String(), "job is free") || says.Len() > 0 {
					t.Errorf("it is held:\n%s%s", out, says)
				}
				d.omits.Store(false)
				claimtest.Released(t, claim)
				time.Sleep(3 * topEvery)
				synctest.Wait()
				if free := strings.Contains(out.String(), "job is free"); free == denies || says.Len() > 0 {
					t.Errorf("it is free:\n%s%s", out, says)
				}
			})
		})
	}
}

// A store that stops answering while a look asks about names is reported once the first question has no answer.
func TestWatchedListAsksAStoreThatHangsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &blurred{Driver: memory.New()}
		claims := heldNames(t, d, 40)
		out, says := watched(t, d)
		time.Sleep(3 * topEvery)
		d.damaged.Store(true)
		time.Sleep(3 * topEvery)
		d.hangs.Store(true)
		for _, c := range claims {
			claimtest.Released(t, c)
		}
		time.Sleep(answerBound + 3*topEvery)
		synctest.Wait()
		if n := strings.Count(says.String(), "deadline exceeded"); n != 1 || strings.Count(says.String(), `"job"`) != 1 {
			t.Errorf("want the damage and the silence reported:\n%s", says)
		}
		if strings.Contains(out.String(), "is free") {
			t.Errorf("nothing is known to be free:\n%s", out)
		}
	})
}

// watched runs "ls --watch" on d until the test ends. The bubble must stand still when its output is read.
func watched(t *testing.T, d driver.Driver) (out, says *bytes.Buffer) {
	t.Helper()
	locks, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, says = new(bytes.Buffer), new(bytes.Buffer)
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { watchList(ctx, &app{stdout: out, stderr: says}, locks, "") })
	t.Cleanup(func() { cancel(); watching.Wait(); locks.Close() })
	return out, says
}

// heldNames returns claims that hold n names.
func heldNames(t *testing.T, d driver.Driver, n int) (claims []driver.Claim) {
	t.Helper()
	for i := range n {
		claims = append(claims, claimtest.New(t, d, driver.Request{Resource: fmt.Sprint("other", i), Owner: "o", TTL: time.Hour}))
		claimtest.Granted(t, claims[i])
	}
	return claims
}

// watchedChurn watches a store for a while in which each second perSecond names are locked, for 1.5
// s each. It returns the output at that moment.
func watchedChurn(t *testing.T, d *blurred, perSecond int, lasts time.Duration) (out, says string) {
	stdout, stderr := watched(t, d)
	const pause, held = 100 * time.Millisecond, 15 // pauses
	var batches [][]driver.Claim
	for n := 0; time.Duration(n)*pause < lasts; n++ {
		batches = append(batches, nil)
		for i := range perSecond / int(time.Second/pause) {
			c := claimtest.New(t, d, driver.Request{Resource: fmt.Sprintf("job-%d-%d", n, i), Owner: "o", TTL: time.Hour})
			claimtest.Granted(t, c)
			batches[n] = append(batches[n], c)
		}
		if n >= held {
			for _, c := range batches[n-held] {
				claimtest.Released(t, c)
			}
			batches[n-held] = nil
		}
		time.Sleep(pause)
	}
	synctest.Wait()
	return stdout.String(), stderr.String()
}

// Names that come and go are reported free within seconds, even if the store needs a while for each
// answer.
func TestWatchedListKeepsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, seconds = 200, 60
		out, says := watchedChurn(t, &blurred{Driver: memory.New(), delay: 20 * time.Millisecond}, perSecond, seconds*time.Second)
		if held, free := strings.Count(out, "is held"), strings.Count(out, "is free"); held < (seconds-2)*perSecond || free < held-5*perSecond || says != "" {
			t.Errorf("%d were held and %d of them free: %s", held, free, says)
		}
	})
}

// All names that are held may become free at once.
func TestWatchedListSeesAllBecomeFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New()
		claims := heldNames(t, d, 15_000)
		out, says := watched(t, d)
		synctest.Wait()
		for _, c := range claims {
			claimtest.Released(t, c)
		}
		time.Sleep(3 * topEvery)
		synctest.Wait()
		if free := strings.Count(out.String(), "is free"); free != len(claims) || says.Len() > 0 {
			t.Errorf("%d of %d are free: %s", free, len(claims), says)
		}
	})
}

// If names come and go faster than the store answers, the list says so once, and reports those that
// it can ask about.
func TestWatchedListFallsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, says := watchedChurn(t, &blurred{Driver: memory.New(), delay: time.Second / 2}, missingMost/10, 20*time.Second)
		if free := strings.Count(out, "is free"); free == 0 || strings.Count(says, "faster than the store answers") != 1 {
			t.Errorf("%d free: %s", free, says)
		}
	})
}
