package zklock_test

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/internal/boottime"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// leaseAfterASleep: what the leader knew of before this machine slept is all that a lease may count on, until it has
// been told of more. Had our server been cut off in the sleep, nobody would have told it.
func leaseAfterASleep(t *testing.T, z *servers.ZooKeeper) {
	const session, sleep = 30 * time.Second, 15 * time.Second
	for what, call := range map[string]func(*zklock.Driver, driver.Claim) (driver.Grant, error){
		"Try": func(_ *zklock.Driver, c driver.Claim) (driver.Grant, error) { return c.Try(t.Context()) },
		"Renew": func(d *zklock.Driver, c driver.Claim) (driver.Grant, error) {
			return c.Renew(t.Context(), d.Features().SessionTTL)
		},
		"RenewAll": func(d *zklock.Driver, c driver.Claim) (driver.Grant, error) {
			all := []driver.Renewal{{Claim: c, TTL: d.Features().SessionTTL}}
			d.RenewAll(t.Context(), all)
			return all[0].Grant, all[0].Err
		},
	} {
		var clock boottime.Clock
		d := driverOn(t, &zklock.Options{SessionTimeout: session}, z.Addr())
		zklock.SleepBy(d, &clock)
		c := claimOn(t, d, "slept "+what)
		claimtest.Granted(t, c)
		slept := time.Now()
		clock.Sleep(sleep)
		g, err := call(d, c)
		if most := session - sleep + time.Since(slept); err != nil || g.TTL > most {
			t.Errorf("%s after a sleep of %v: for %v, %v; the session may end in %v", what, sleep, g.TTL, err, most)
		}
	}
}
