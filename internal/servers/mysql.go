package servers

import (
	"fmt"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A MySQL is one server of MySQL or MariaDB. Its user root needs no password.
type MySQL struct{ database }

// mysqlVersion is the version that StartMySQL runs, unless the environment names a build.
const mysqlVersion = "9"

// StartMySQL starts a MySQL with an empty database called locks. It skips t if MySQL is missing:
// the system has no package of it. settings have the form --name=value.
func StartMySQL(t testing.TB, settings ...string) *MySQL {
	t.Helper()
	root := Root("mysql")
	if root == "" {
		root = fetch(t, "-n", "mysql", mysqlVersion) // by make tools, because a test must not install anything
	}
	need(t, "mariadb", "the user mysql", func() error { _, err := user.Lookup("mysql"); return err })
	daemon := filepath.Join(root, "bin", "mysqld")
	m := newMySQL(t, daemon, []string{"--innodb-redo-log-capacity=8M", "--mysqlx=OFF", "--secure-file-priv="}, func(folder string, common []string) {
		const overTCP = "RENAME USER root@localhost TO root@'%';\n"
		first := filepath.Join(filepath.Dir(folder), "first.sql")
		write(t, first, overTCP)
		runAs(t, "mysql", daemon, append(common, "--initialize-insecure", "--init-file="+first, "--datadir="+folder)...)
	})
	return m.begin(t, settings)
}

// StartMariaDB starts a MariaDB with an empty database called locks. settings have the form
// --name=value.
func StartMariaDB(t testing.TB, settings ...string) *MySQL {
	t.Helper()
	m := newMySQL(t, Need(t, "mariadb", "mariadbd"), []string{"--innodb-log-file-size=8M"}, func(folder string, common []string) {
		runAs(t, "mysql", Need(t, "mariadb", "mariadb-install-db"), append(common, "--datadir="+folder,
			"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")...)
	})
	return m.begin(t, settings)
}

// newMySQL returns a server with its first files, which install makes. Its redo log is small
// because the files are copied. All programs get the common arguments.
func newMySQL(t testing.TB, daemon string, small []string, install func(folder string, common []string)) *MySQL {
	t.Helper()
	m := &MySQL{newDatabase(t, "mysql", daemon, askMySQL)}
	m.args = append([]string{"--no-defaults", "--tmpdir=" + m.dir}, small...) // not shared: a starting server deletes all temporary files there
	copyOf(t, "mysql", m.dir, version(t, daemon), func(folder string) { install(folder, slices.Clone(m.args)) })
	return m
}

// begin starts the server for the first time.
func (m *MySQL) begin(t testing.TB, settings []string) *MySQL {
	t.Helper()
	m.args = append(m.args, "--datadir="+m.Data(), fmt.Sprintf("--port=%d", m.Port),
		"--bind-address=127.0.0.1", "--socket="+filepath.Join(m.dir, "s.sock"), "--pid-file="+filepath.Join(m.dir, "pid"),
		"--skip-name-resolve")
	m.args = append(m.args, settings...)
	m.Start(t)
	m.Must(t, "CREATE DATABASE locks")
	return m
}

// MySQLDisk mounts an empty disk of a size such as "2m" for a server.
func MySQLDisk(t testing.TB, size string) (dir string) { return small(t, "mysql", size) }

// DSN returns the data source name of the database locks, for the user root.
func (m *MySQL) DSN() string { return "root@tcp(" + m.Addr() + ")/locks" }

// Cut closes all connections of a user.
func (m *MySQL) Cut(t testing.TB, user string) {
	t.Helper()
	const all = "SELECT COALESCE(GROUP_CONCAT(id), '') FROM information_schema.processlist WHERE user = '%s'"
	for _, id := range strings.FieldsFunc(m.Must(t, fmt.Sprintf(all, user)), func(r rune) bool { return r == ',' }) {
		if _, err := m.Ask("KILL " + id); err != nil && !strings.Contains(err.Error(), "Unknown thread id") {
			t.Fatal(err)
		}
	}
}
