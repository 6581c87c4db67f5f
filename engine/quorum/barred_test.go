package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/locktest"
)

// For every mask of five nodes that the release does not reach, and every other of those that the late attempt does not
// reach: whenever the release has told its outcome, the attempt takes nothing.
func TestLateTryOfABarredOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, ttl, keep, within = 5, 10 * time.Second, time.Minute, 5 * time.Second
		c := newCluster(nodes)
		d, toRelease := c.connect(t, nil)
		late, toTry := c.connect(t, nil)
		cut := func(links []*locktest.Faulty, mask uint) (heal func()) {
			var heals []func()
			for i, l := range links {
				if mask&(1<<i) != 0 {
					heals = append(heals, l.Sever())
				}
			}
			return func() {
				for _, h := range heals {
					h()
				}
			}
		}
		refused := 0
		for without := range uint(1 << nodes) {
			for away := range uint(1 << nodes) {
				if bits.OnesCount(away) > 2 {
					continue // no majority to try at
				}
				for _, held := range []bool{false, true} {
					req := driver.Request{Resource: fmt.Sprint(without, away, held), Owner: "o", TTL: ttl}
					one := claimOf(t, d, req)
					if held {
						if _, err := one.Try(t.Context()); err != nil {
							t.Fatalf("Try of what is free: %v", err)
						}
					}
					healRelease := cut(toRelease, without)
					ctx, cancel := context.WithTimeout(t.Context(), within)
					err := one.Release(ctx, driver.End{Bar: keep})
					cancel()
					told := err == nil || errors.Is(err, driver.ErrLost)
					if want := bits.OnesCount(without) <= 2; told != want {
						t.Errorf("Release without the nodes %05b: %v; told is to be %v", without, err, want)
					}
					healTry := cut(toTry, away)
					ctx, cancel = context.WithTimeout(t.Context(), within)
					_, err = claimOf(t, late, req).Try(ctx)
					cancel()
					if told && err == nil {
						t.Errorf("Try without the nodes %05b, after a release without %05b: granted", away, without)
					}
					if errors.Is(err, driver.ErrBarred) {
						refused++
					}
					healRelease()
					healTry()
					synctest.Wait()
					time.Sleep(ttl) // what the release has not reached is over
					if err := next(t, late, req.Resource); err != nil {
						t.Errorf("Try of another owner, after %05b and %05b: %v", without, away, err)
					}
				}
			}
		}
		if refused == 0 {
			t.Error("no Try was refused for its owner")
		}
	})
}

func claimOf(t *testing.T, d driver.Driver, req driver.Request) driver.Claim {
	t.Helper()
	c, err := d.Claim(req)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// next has another owner take the resource.
func next(t *testing.T, d driver.Driver, name string) error {
	_, err := claimOf(t, d, driver.Request{Resource: name, Owner: "next", TTL: time.Second}).Try(t.Context())
	return err
}
