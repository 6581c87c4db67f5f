package postgres

import (
	"database/sql"
	"testing"

	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// An application that shares the pool has left transactions open. What NewPostgres says of pgx is so.
func TestPostgresTransactionsLeftOpen(t *testing.T) {
	t.Parallel()
	p := servers.StartPostgres(t)
	d := opened(t, p.URL(), "")
	var left []*sql.Conn
	for range 4 {
		conn, err := d.DB.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.ExecContext(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		left = append(left, conn)
	}
	for _, conn := range left {
		conn.Close() // back to the pool
	}
	if err := databases.Try(t, d, "left"); err != nil {
		t.Fatal(err)
	}
	if n := p.Must(t, "SELECT count(*) FROM leasehold_locks WHERE name = 'left'"); n != "1" {
		t.Errorf("others see %s rows of what was granted; want 1", n)
	}
}
