package stores

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/pglisten"
	"github.com/leasehold-go/leasehold/sqllock"
)

// postgresOptions are what may stand after the "?" of a PostgreSQL URL.
var postgresOptions = []string{"prefix", "schema", "pooled", "listen", "sslmode", "password_file", "tls", "ca_file", "cert_file", "key_file", "server_name"}

// sslModes mean what they mean to libpq; those that verify use the system's authorities, or
// the file of PGSSLROOTCERT.
var sslModes = []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

// openPostgres has waiters woken through a connection to the same server, unless pooled
// says that it is a pool, or listen says where else.
func openPostgres(_ context.Context, rest string) (driver.Driver, string, error) {
	u, err := parseServer("postgres", rest, postgresOptions, false)
	if err != nil {
		return nil, "", err
	}
	config, err := u.postgresConfig()
	if err != nil {
		return nil, "", err
	}
	listen := u.options.Get("listen")
	switch u.options.Get("pooled") {
	case "true":
		config.DefaultQueryExecMode = pgx.QueryExecModeExec // prepares no statement
		if listen == "" {
			listen = "false"
		}
	case "", "false":
	default:
		return nil, "", u.wrong("pooled is true or false")
	}
	opts := &sqllock.Options{}
	if listen != "false" {
		at := config.Copy()
		if listen != "" {
			host, port, err := net.SplitHostPort(listen)
			n, err2 := strconv.ParseUint(port, 10, 16)
			if err != nil || err2 != nil {
				return nil, "", u.wrong("listen is false or host:port")
			}
			at.Host, at.Port = host, uint16(n)
		}
		opts.Listen = pglisten.NewFor(at)
	}
	return openDatabase(u, stdlib.OpenDB(*config), sqllock.NewPostgres, opts)
}

// postgresConfig starts from what the environment has for clients of PostgreSQL.
func (u *serverURL) postgresConfig() (*pgx.ConnConfig, error) {
	addr, name, err := u.databaseAt("5432")
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(addr) // databaseAt has made it so
	words := map[string]string{"host": host, "port": port, "dbname": name, "connect_timeout": "10"}
	if u.user != "" {
		words["user"] = u.user
	}
	if u.password != "" {
		words["password"] = u.password
	}
	mode, given := u.options["sslmode"]
	switch {
	case given && !slices.Contains(sslModes, mode[0]):
		return nil, u.wrong("sslmode is one of %s", strings.Join(sslModes, ", "))
	case given && u.tls != nil:
		return nil, u.wrong("sslmode excludes tls, ca_file, cert_file, key_file and server_name")
	case given:
		words["sslmode"] = mode[0]
	case u.tls != nil:
		words["sslmode"] = "disable" // ours takes its place
	}
	var b strings.Builder
	for key, value := range words {
		fmt.Fprintf(&b, "%s='%s' ", key, strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value))
	}
	config, err := pgx.ParseConfig(b.String())
	if err != nil {
		return nil, u.wrong("the address cannot be used, or a PG variable of the environment: see the manual of libpq")
	}
	if u.tls != nil {
		config.TLSConfig = u.tls
	}
	return config, nil
}
