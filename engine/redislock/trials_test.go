package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
)

// trialsOf are trials of n claims for names of their own.
func trialsOf(t *testing.T, d *Driver, n int, mode driver.Mode) []driver.Trial {
	t.Helper()
	trials := make([]driver.Trial, n)
	for i := range trials {
		c, err := d.Claim(driver.Request{Resource: fmt.Sprint("n", i), Owner: fmt.Sprint("owner", i), Mode: mode, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		trials[i].Claim = c
	}
	return trials
}

func endingsOf(trials []driver.Trial) []driver.Ending {
	endings := make([]driver.Ending, len(trials))
	for i, t := range trials {
		endings[i].Claim = t.Claim
	}
	return endings
}

// A counted connection counts writes.
type counted struct {
	net.Conn
	writes *atomic.Int32
}

func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// Calls of several claims leave in one write, in their order.
func TestClaimsTogetherAreOneWrite(t *testing.T) {
	const n = 5
	var mu sync.Mutex
	var served []string // guarded by mu
	client := speaking(t, func(words []string) any {
		mu.Lock()
		defer mu.Unlock()
		served = append(served, lockOf(words))
		if isScript(words, scriptAcquire) {
			return []any{int64(replyGranted), int64(len(served)), int64(0)}
		}
		return grantPlain(words)
	})
	options := *client.Options()
	var writes atomic.Int32
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return counted{c, &writes}, err
	}
	inner := redis.NewClient(&options)
	defer inner.Close()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		d := driverOn(t, inner, nil)
		if _, err := longClaim(t, d, "connects").Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		trials := trialsOf(t, d, n, mode)
		endings := endingsOf(trials)
		slices.Reverse(endings)
		for _, step := range []struct {
			name  string
			do    func()
			first string
		}{
			{"TryAll", func() { d.TryAll(t.Context(), trials) }, "lock:n0"},
			{"ReleaseAll", func() { d.ReleaseAll(t.Context(), endings) }, "lock:n4"},
		} {
			before := writes.Load()
			served = nil
			step.do()
			if sent := writes.Load() - before; sent != 1 || len(served) != n || served[0] != step.first {
				t.Errorf("%s, mode %v: %d writes for %q", step.name, mode, sent, served)
			}
		}
		for i := range n {
			if trials[i].Err != nil || trials[i].Grant.Fence == 0 || endings[i].Err != nil {
				t.Errorf("number %d: fence %d, %v; released: %v", i, trials[i].Grant.Fence, trials[i].Err, endings[i].Err)
			}
		}
	}
}

// An answer that is lost is lost for its own claim, which gives up by Release what it may have been
// granted.
func TestLostAnswerOfOneOfSeveral(t *testing.T) {
	const n = 4
	for answers := range n {
		var left atomic.Int32
		left.Store(1 + int32(answers))
		var late sync.Map // lock keys of releases that leave a mark
		d := driverOn(t, speaking(t, func(words []string) any {
			if left.Add(-1) < 0 {
				left.Store(1 << 20)
				return hangUp{}
			}
			if isScript(words, scriptRelease) && words[2+11+1+2] != "" {
				late.Store(lockOf(words), true)
			}
			return grantPlain(words)
		}), nil)
		if _, err := longClaim(t, d, "connects").Try(t.Context()); err != nil {
			t.Fatal(err)
		}
		trials := trialsOf(t, d, n, driver.Exclusive)
		d.TryAll(t.Context(), trials)
		for i, trial := range trials {
			granted, unsure := trial.Err == nil, trial.Claim.(*claim).load().uncertain.attempt
			if granted != (i < answers) || unsure == granted || errors.Is(trial.Err, driver.ErrBusy) {
				t.Errorf("%d answers: number %d: %v, uncertain: %v", answers, i, trial.Err, unsure)
			}
		}
		endings := endingsOf(trials)
		d.ReleaseAll(t.Context(), endings)
		for i, ending := range endings {
			_, marked := late.Load(ending.Claim.(*claim).keys.lock)
			if ending.Err != nil || marked != (i >= answers) {
				t.Errorf("%d answers: release of number %d: %v, against a late attempt: %v", answers, i, ending.Err, marked)
			}
		}
	}
}

// Calls that were held for a write that never came have not left: they go over another connection.
func TestHeldCallsOfAnEndedConnection(t *testing.T) {
	d := driverOn(t, speaking(t, func(words []string) any { return grantPlain(words) }), nil)
	if _, err := longClaim(t, d, "connects").Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := trialsOf(t, d, 1, driver.Exclusive)[0].Claim.(*claim)
	was, take := c.beginTake(), c.newTake()
	if !d.pipelines.hold(t.Context(), c.keys.lock, take) {
		t.Fatal("not held")
	}
	take.on.end(errGone)
	if again := c.newTake(); take.on.hold(again) {
		t.Error("held on a connection that has ended")
	}
	reply, err := d.pipelines.ask(t.Context(), c.keys.lock, take)
	if _, taken, err := c.took(t.Context(), was, reply, err); !taken || err != nil {
		t.Errorf("taken: %v, %v", taken, err)
	}
}

// A server that falls silent is left by all claims of a batch at once, and they ask again.
func TestSilentServerIsLeftByAllTogether(t *testing.T) {
	const n = 20
	var silent atomic.Int32 // how many of the next calls have no answer
	d := driverOn(t, speaking(t, func(words []string) any {
		switch {
		case silent.Add(-1) >= 0:
			return nil
		case isScript(words, scriptAcquire):
			return []any{int64(replyGranted), int64(1), int64(0)}
		}
		return grantPlain(words)
	}), nil)
	if _, err := longClaim(t, d, "connects").Try(t.Context()); err != nil {
		t.Fatal(err)
	}
	silent.Store(n)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	trials := trialsOf(t, d, n, driver.Exclusive)
	start := time.Now()
	d.TryAll(ctx, trials)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	for i, trial := range trials {
		if trial.Err != nil {
			t.Errorf("number %d: %v", i, trial.Err)
		}
	}
}
