package servers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// askPostgres runs statements as the user postgres, who needs no password, each on a connection of its own. It returns
// the first value of the first row of the last one, as text: "" if it has none, or NULL.
func askPostgres(port int, statements ...string) (answer string, err error) {
	psql := "psql" // which may be a script that looks for these
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/psql"); len(found) > 0 {
		psql = found[len(found)-1]
	}
	where := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable connect_timeout=10", port)
	for _, s := range statements {
		// Zero bytes, which no value has, end values and rows.
		rows, err := output(psql, "--no-psqlrc", "--no-align", "--tuples-only", "--quiet",
			"--field-separator-zero", "--record-separator-zero", "--command", s, where)
		if err != nil {
			return "", fmt.Errorf("%s: %w", s, err)
		}
		answer, _, _ = strings.Cut(rows, "\x00")
	}
	return answer, nil
}

// inMySQL are characters that its client writes as others, so that each row is a line.
var inMySQL = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`, `\0`, "\x00")

// askMySQL runs statements as the user root, who needs no password, each on a connection of its own. It returns the
// last value of the first row of the last one, as text: "" if it has none, or NULL.
func askMySQL(port int, statements ...string) (answer string, err error) {
	for _, s := range statements {
		rows, err := output("mariadb", "--no-defaults", "--skip-ssl", "--user=root", "--host=127.0.0.1", fmt.Sprintf("--port=%d", port),
			"--connect-timeout=10", "--batch", "--skip-column-names", "--execute="+s)
		if err != nil {
			return "", fmt.Errorf("%s: %w", s, err)
		}
		row, _, _ := strings.Cut(rows, "\n")
		answer = inMySQL.Replace(row[strings.LastIndexByte(row, '\t')+1:])
		if answer == "NULL" {
			answer = ""
		}
	}
	return answer, nil
}

// serves returns nil when a database answers. Before it listens no client is started, which costs more than to look.
func serves(port int, ask func(statements ...string) (string, error)) error {
	conn, err := dial(address(port))
	if err == nil {
		conn.Close()
		_, err = ask("SELECT 1")
	}
	return err
}

// output is what a client prints. What it says of an error is the error.
func output(client string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, client, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), err
}
