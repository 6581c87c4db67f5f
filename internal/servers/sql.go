package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A database is a server that runs statements.
type database struct {
	*server
	client func(port int, statements ...string) (answer string, err error)
}

// newDatabase returns a server that runs as a user and has no files yet.
func newDatabase(t testing.TB, user, binary string, client func(port int, statements ...string) (string, error)) database {
	t.Helper()
	d := database{&server{Port: FreePorts(t, 1)[0], life: t, dir: folder(t, diskOf(t), user), binary: binary, user: user}, client}
	d.serves = func() error {
		err := listens(d.Addr()) // a client that is started before the server listens would cost more
		if err == nil {
			_, err = d.Ask("SELECT 1")
		}
		return err
	}
	return d
}

// Ask runs statements on a connection of its own and returns the answer of the last one as text, or
// "" if there is none. The answer is in the first row: the first value (PostgreSQL) or the last one
// (MySQL).
func (d database) Ask(statements ...string) (answer string, err error) {
	return d.client(d.Port, statements...)
}

// Must is like Ask, but fails t on an error.
func (d database) Must(t testing.TB, statements ...string) string {
	t.Helper()
	answer, err := d.Ask(statements...)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// askPostgres runs statements as the user postgres, who needs no password.
func askPostgres(port int, statements ...string) (answer string, err error) {
	psql := "psql" // it may be a script that looks for the programs below
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/psql"); len(found) > 0 {
		psql = found[len(found)-1]
	}
	// Zero bytes, which no value has, end values and rows.
	args := []string{"--no-psqlrc", "--no-align", "--tuples-only", "--quiet", "--set=ON_ERROR_STOP=1",
		"--field-separator-zero", "--record-separator-zero"}
	all, mark := marked(statements)
	for _, s := range all {
		args = append(args, "--command", s)
	}
	where := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable connect_timeout=10", port)
	rows, err := output(psql, mark+"\x00", append(args, where)...)
	answer, _, _ = strings.Cut(rows, "\x00")
	return answer, err
}

// inMySQL decodes the characters that MySQL's client escapes, so that each row is a line.
var inMySQL = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`, `\0`, "\x00")

// askMySQL runs statements as the user root, who needs no password.
func askMySQL(port int, statements ...string) (answer string, err error) {
	all, mark := marked(statements)
	rows, err := output("mariadb", mark+"\n", "--no-defaults", "--skip-ssl", "--user=root", "--host=127.0.0.1", fmt.Sprintf("--port=%d", port),
		"--connect-timeout=10", "--batch", "--skip-column-names", "--execute="+strings.Join(all, ";\n"))
	row, _, _ := strings.Cut(rows, "\n")
	answer = inMySQL.Replace(row[strings.LastIndexByte(row, '\t')+1:])
	if answer == "NULL" {
		answer = ""
	}
	return answer, err
}

// marked inserts a statement that returns a mark before the last one.
func marked(statements []string) (all []string, mark string) {
	mark = rand.Text()
	return slices.Insert(slices.Clone(statements), len(statements)-1, "SELECT '"+mark+"'"), mark
}

// output returns what a client prints after mark. Its error has the client's error output.
func output(client, mark string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, client, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", err
	}
	_, last, _ := strings.Cut(string(out), mark)
	return last, nil
}
