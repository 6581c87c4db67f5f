package postgres

import (
	"testing"

	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// The former primary comes back as a standby, and takes connections before the name has moved to the new one.
func TestPostgresDemotedPrimary(t *testing.T) {
	t.Parallel()
	former := servers.StartPostgres(t, "max_wal_senders=4")
	opened(t, former.URL(), "") // migrates
	next := former.StartStandby(t)
	name := servers.StartProxy(t, former.Addr())
	url := "postgres://postgres@" + name.Addr() + "/postgres?sslmode=disable"
	databases.FailsOver(t, databases.Failover{
		URL:   url,
		Store: func(t testing.TB) databases.Store { return opened(t, url, url) },
		Demote: func(t testing.TB) {
			former.Shutdown() // which waits until its standby has it all
			next.Must(t, "SELECT pg_promote()")
			former.Follow(t, next)
			former.Must(t, "SELECT pg_wal_replay_pause()")
		},
		Next: func(t testing.TB) databases.Store { return opened(t, next.URL(), "") },
		Move: func(t testing.TB) { name.Move(next.Addr()) },
	})
}
