package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// before is called with each statement before it is run.
type before func(text string)

func (f before) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	f(q.SQL)
	return ctx
}

func (before) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Between the read of a row and its write somebody else is granted, and an operator deletes the rows: what is granted then
// has a fence above all of before.
func TestPostgresFlushBetweenReadAndWrite(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	other := opened(t, p.URL(), "")
	config, err := pgx.ParseConfig(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	meanwhile := func() {}
	config.Tracer = before(func(text string) {
		if strings.Contains(text, "$9") {
			meanwhile()
		}
	})
	db := stdlib.OpenDB(*config)
	made, err := sqllock.NewPostgres(db, nil)
	s := databases.Opened(t, databases.Store{Driver: made, DB: db}, err)
	for _, existed := range []bool{true, false} {
		try := func(d driver.Driver, owner string, mode driver.Mode) driver.Grant {
			c := claimtest.New(t, d, driver.Request{Resource: fmt.Sprint(existed), Owner: owner, Mode: mode, TTL: time.Minute})
			g := claimtest.Granted(t, c)
			return g
		}
		if existed {
			try(other, "before", driver.Exclusive)
			p.Must(t, "UPDATE leasehold_locks SET expires = 0")
		}
		var between driver.Grant
		meanwhile = func() {
			meanwhile = func() {}
			if !existed {
				p.Must(t, "DELETE FROM leasehold_locks")
			}
			between = try(other, "between", driver.Exclusive)
			p.Must(t, "DELETE FROM leasehold_locks")
		}
		if g := try(s, "after", driver.Shared); between.Fence == 0 || g.Fence <= between.Fence {
			t.Errorf("the row was there: %v: granted %d, then the rows deleted, then granted %d", existed, between.Fence, g.Fence)
		}
	}
}
