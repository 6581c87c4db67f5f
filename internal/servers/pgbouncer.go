package servers

import (
	"fmt"
	"path/filepath"
	"testing"
)

// A PgBouncer shares a few connections to a PostgreSQL among many clients.
type PgBouncer struct{ database }

// StartPgBouncer starts one in front of p, in transaction mode: between two transactions a client
// has no connection to the server. There are at most pool connections.
func StartPgBouncer(t testing.TB, p *Postgres, pool int) *PgBouncer {
	t.Helper()
	b := &PgBouncer{newDatabase(t, "postgres", Need(t, "pgbouncer", "pgbouncer"), askPostgres)}
	conf := filepath.Join(b.dir, "pgbouncer.ini")
	b.args = []string{conf}
	write(t, conf, fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = %d
max_client_conn = 500
`, p.Port, b.Port, pool))
	b.Start(t)
	return b
}

// URL returns the URL of the database postgres, for a client that prepares no statements.
func (b *PgBouncer) URL() string {
	return "postgres://postgres@" + b.Addr() + "/postgres?sslmode=disable&default_query_exec_mode=exec"
}
