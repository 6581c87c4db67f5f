// Package postgres_test compares Leasehold on PostgreSQL with advisory locks, none of which
// works through a pool in transaction mode, and with what one would write by hand.
package postgres_test

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/bench/databases"
	"github.com/leasehold-go/leasehold/engine/pglisten"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

var postgres = databases.Server{
	Name: "PostgreSQL", Own: "pg_advisory_lock", OwnKeys: 1.5, Open: open,
	Drivers: []databases.Driver{
		{Name: "leasehold", New: listening},
		{Name: "leasehold without LISTEN", New: notListening, Polls: databases.Polling},
	},
	Create: `CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, owner text NOT NULL, expires timestamptz NOT NULL) WITH (fillfactor = 50)`,
	Take: `INSERT INTO bare VALUES ($1, $2, now() + interval '10 s')
		ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires = excluded.expires WHERE bare.expires <= now()`,
	Free:   `UPDATE bare SET expires = now() WHERE name = $1 AND owner = $2`,
	Lock:   `SELECT true FROM pg_advisory_lock(hashtextextended($1, 0))`,
	Unlock: `SELECT pg_advisory_unlock(hashtextextended($1, 0))`,
}

func TestMain(m *testing.M) { postgres.Engine().Main(m) }

// BenchmarkPostgres measures on a server that it starts itself, with its own defaults.
func BenchmarkPostgres(b *testing.B) {
	server := servers.StartPostgres(b, "max_connections=500")
	contest.Server("PostgreSQL " + server.Must(b, "SHOW server_version"))
	postgres.Compare(b, server.URL())
}

func open(url string) (*sql.DB, func() int64, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	c := &counter{}
	config.Tracer = c
	return stdlib.OpenDB(*config), c.statements.Load, nil
}

// A counter counts the statements of a client.
type counter struct{ statements atomic.Int64 }

// TraceQueryStart is called by pgx.
func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.statements.Add(1)
	return ctx
}

// TraceQueryEnd is called by pgx.
func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func listening(url string, db *sql.DB) (*sqllock.Driver, error) {
	l, err := pglisten.New(url)
	if err != nil {
		return nil, err
	}
	return sqllock.NewPostgres(db, &sqllock.Options{Listen: l})
}

func notListening(_ string, db *sql.DB) (*sqllock.Driver, error) { return sqllock.NewPostgres(db, nil) }
