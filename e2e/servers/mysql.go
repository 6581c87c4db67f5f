package servers

import (
	"database/sql"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// Servers that are down are part of the tests.
func init() { _ = mysql.SetLogger(log.New(io.Discard, "", 0)) }

// A MariaDB is one MariaDB server. Its user root needs no password.
type MariaDB struct {
	*Process
	Port int
	life testing.TB // the server ends with it
	dir  string
	args []string
}

// StartMariaDB starts a MariaDB with an empty database called locks. settings are of the
// form --name=value.
func StartMariaDB(t testing.TB, settings ...string) *MariaDB {
	t.Helper()
	m := &MariaDB{Port: FreePorts(t, 1)[0], life: t, dir: dirOf(t, "mysql")}
	tmp := "--tmpdir=" + m.dir           // one that starts removes the temporary files of all that share it
	small := "--innodb-log-file-size=8M" // it is copied
	copyOf(t, "mysql", m.dir, version(t, Need(t, "mariadb", "mariadbd")), func(folder string) {
		runAs(t, "mysql", Need(t, "mariadb", "mariadb-install-db"), "--no-defaults", "--datadir="+folder, tmp, small,
			"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
	})
	m.args = append([]string{"--no-defaults", "--datadir=" + filepath.Join(m.dir, "data"), tmp, small, fmt.Sprintf("--port=%d", m.Port),
		"--bind-address=127.0.0.1", "--socket=" + filepath.Join(m.dir, "s.sock"), "--pid-file=" + filepath.Join(m.dir, "pid"),
		"--skip-name-resolve"}, settings...)
	m.Start(t)
	m.Must(t, "CREATE DATABASE locks")
	return m
}

// Start starts the server again after Kill or Stop, and returns when it answers.
func (m *MariaDB) Start(t testing.TB) {
	t.Helper()
	m.Process = startAs(m.life, "mysql", m.dir, Need(t, "mariadb", "mariadbd"), m.args...)
	m.until("ready", func() error { _, err := m.Ask("SELECT 1"); return err })
}

// Disk mounts an empty disk of a size such as "2m" for the server.
func (m *MariaDB) Disk(t testing.TB, size string) (dir string) { return small(t, "mysql", size) }

// Addr is host and port.
func (m *MariaDB) Addr() string { return address(m.Port) }

// DSN is that of the database locks, for the user root.
func (m *MariaDB) DSN() string { return "root@tcp(" + m.Addr() + ")/locks" }

// Ask runs statements on a connection of its own and returns the last value of the first row of the last
// one, as text: "" if it is no SELECT or SHOW.
func (m *MariaDB) Ask(statements ...string) (answer string, err error) {
	db, err := sql.Open("mysql", "root@tcp("+m.Addr()+")/?timeout=10s")
	if err != nil {
		return "", err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, s := range statements {
		if answer, err = ask(db, s); err != nil {
			return "", fmt.Errorf("%s: %w", s, err)
		}
	}
	return answer, nil
}

func ask(db *sql.DB, statement string) (string, error) {
	rows, err := db.Query(statement)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil || !rows.Next() {
		return "", rows.Err()
	}
	values := make([]sql.RawBytes, len(columns))
	into := make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	if err := rows.Scan(into...); err != nil {
		return "", err
	}
	return string(values[len(values)-1]), nil // of SHOW the value comes after the name
}

// Must is Ask that fails t.
func (m *MariaDB) Must(t testing.TB, statements ...string) string {
	t.Helper()
	answer, err := m.Ask(statements...)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}
