package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Shutdown stops the server as for maintenance. Its standbys have all its commits then.
func (p *Postgres) Shutdown() {
	p.Signal(syscall.SIGINT) // a fast shutdown: it does not wait for clients
	p.Stop()
}

// Follow starts a server that was shut down as a standby of primary, which has been promoted since.
func (p *Postgres) Follow(t testing.TB, primary *Postgres) {
	t.Helper()
	settings := fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=postgres'\n", primary.Port)
	auto := filepath.Join(p.Data(), "postgresql.auto.conf")
	text, err := os.ReadFile(auto)
	if err == nil {
		err = os.WriteFile(auto, append(text, settings...), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(p.Data(), "standby.signal"), nil, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Start(t)
}

// Replicates returns the settings of a MySQL or MariaDB that takes part in replication. Each server
// needs its own id.
func Replicates(id int) []string {
	const exists = "1007" // each server has created the database
	return []string{fmt.Sprintf("--server-id=%d", id), "--log-bin=binlog", "--loose-slave-skip-errors=" + exists, "--loose-replica-skip-errors=" + exists}
}

// Follow makes a new server replicate everything that source has done and does. Both were started
// with Replicates.
func (m *MySQL) Follow(t testing.TB, source *MySQL) {
	t.Helper()
	change := "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=%d, SOURCE_USER='root', SOURCE_LOG_FILE='%s', SOURCE_LOG_POS=4"
	begin := "START REPLICA"
	if m.maria(t) {
		change = "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_USER='root', MASTER_LOG_FILE='%s', MASTER_LOG_POS=4"
		begin = "START SLAVE"
	} else {
		m.Stop() // its files are a copy and contain the original's name
		if err := os.Remove(filepath.Join(m.Data(), "auto.cnf")); err != nil {
			t.Fatal(err)
		}
		m.Start(t)
	}
	m.Must(t, fmt.Sprintf(change, source.Port, "binlog.000001"))
	m.Must(t, begin)
}

// Unfollow ends the replication that Follow began.
func (m *MySQL) Unfollow(t testing.TB) {
	t.Helper()
	end := "STOP REPLICA"
	if m.maria(t) {
		end = "STOP SLAVE"
	}
	m.Must(t, end)
}

func (m *MySQL) maria(t testing.TB) bool {
	t.Helper()
	return strings.Contains(m.Must(t, "SELECT VERSION()"), "MariaDB")
}

// Trouble returns the error that stops the replication of a MySQL, if it reports one.
func (m *MySQL) Trouble() string {
	var all []string
	for _, from := range []string{"replication_connection_status", "replication_applier_status_by_worker", "replication_applier_status_by_coordinator"} {
		said, err := m.Ask("SELECT GROUP_CONCAT(SERVICE_STATE, ' ', LAST_ERROR_MESSAGE) FROM performance_schema." + from)
		all = append(all, fmt.Sprint(said, " ", err))
	}
	return strings.Join(all, "; ")
}
