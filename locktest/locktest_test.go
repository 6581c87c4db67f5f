package locktest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/memory"
)

// More cases run at once when calls have become quick, and never fewer.
func TestCasesRunTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var takes time.Duration
		several := togetherOn(t, Harness{Open: func(testing.TB) driver.Driver { return slow{memory.New(), &takes} }})
		for _, step := range []struct {
			takes time.Duration
			want  int
		}{{50 * time.Millisecond, 1}, {5 * time.Millisecond, 4}, {50 * time.Millisecond, 4}, {0, 8}, {50 * time.Millisecond, 8}} {
			takes = step.takes
			if n := several(); n != step.want {
				t.Errorf("%d at once when Try takes %v, want %d", n, takes, step.want)
			}
			time.Sleep(time.Minute)
		}
	})
}

type slow struct {
	driver.Driver
	takes *time.Duration
}

func (s slow) Claim(req driver.Request) (driver.Claim, error) {
	c, err := s.Driver.Claim(req)
	return slowClaim{c, s.takes}, err
}

type slowClaim struct {
	driver.Claim
	takes *time.Duration
}

func (c slowClaim) Try(ctx context.Context) (driver.Grant, error) {
	time.Sleep(*c.takes)
	return c.Claim.Try(ctx)
}
