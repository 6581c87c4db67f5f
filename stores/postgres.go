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
	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/pglisten"
	"github.com/leasehold-go/leasehold/sqllock"
)

var postgresForm = storeurl.Form{
	Schemes: []string{"postgres"},
	Options: append([]string{"prefix", "schema", "pooled", "listen", "sslmode"}, storeurl.ServerOptions...),
}

// sslModes mean what they mean to libpq; those that verify use the system's authorities, or
// the file of PGSSLROOTCERT.
var sslModes = []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

// openPostgres has waiters woken through a connection to the same server, unless pooled
// says that it is a pool, or listen says where else.
func openPostgres(ctx context.Context, url string, create bool) (driver.Driver, error) {
	u, err := storeurl.Parse(url, postgresForm)
	if err != nil {
		return nil, err
	}
	config, err := postgresConfig(u)
	if err != nil {
		return nil, err
	}
	listen := u.Options.Get("listen")
	pooled, err := u.Bool("pooled", false)
	if err != nil {
		return nil, err
	}
	if pooled {
		config.DefaultQueryExecMode = pgx.QueryExecModeExec // prepares no statement
		if listen == "" {
			listen = "false"
		}
	}
	opts := &sqllock.Options{}
	if listen != "false" {
		at := config.Copy()
		if listen != "" {
			host, port, err := net.SplitHostPort(listen)
			n, err2 := strconv.ParseUint(port, 10, 16)
			if err != nil || err2 != nil {
				return nil, u.Wrong("listen is false or host:port")
			}
			at.Host, at.Port = host, uint16(n)
		}
		opts.Listen = pglisten.NewFor(at)
	}
	return openDatabase(ctx, u, stdlib.OpenDB(*config), sqllock.NewPostgres, opts, create)
}

// postgresConfig starts from what the environment has for clients of PostgreSQL.
func postgresConfig(u *storeurl.URL) (*pgx.ConnConfig, error) {
	addr, name, err := databaseAt(u, "5432")
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(addr) // databaseAt has made it so
	words := map[string]string{"host": host, "port": port, "dbname": name, "connect_timeout": "10"}
	if u.User != "" {
		words["user"] = u.User
	}
	if u.Password != "" {
		words["password"] = u.Password
	}
	mode, given := u.Options["sslmode"]
	switch {
	case given && !slices.Contains(sslModes, mode[0]):
		return nil, u.Wrong("sslmode is one of %s", strings.Join(sslModes, ", "))
	case given && u.TLS != nil:
		return nil, u.Wrong("sslmode excludes tls, ca_file, cert_file, key_file and server_name")
	case given:
		words["sslmode"] = mode[0]
	case u.TLS != nil:
		words["sslmode"] = "disable" // ours takes its place
	}
	var b strings.Builder
	for key, value := range words {
		fmt.Fprintf(&b, "%s='%s' ", key, strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value))
	}
	config, err := pgx.ParseConfig(b.String())
	if err != nil {
		return nil, u.Wrong("the address cannot be used, or a PG variable of the environment: see the manual of libpq")
	}
	if u.TLS != nil {
		config.TLSConfig = u.TLS
	}
	return config, nil
}
