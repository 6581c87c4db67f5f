package stores

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/pglisten"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/dialled"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

var postgresForm = storeurl.Form{
	Schemes: []string{"postgres"},
	Options: append([]string{"prefix", "schema", "pooled", "listen", "sslmode"}, storeurl.ServerOptions...),
}

// sslModes have the meanings that libpq gives them. Those that verify use the system's certificate
// authorities, or the file of PGSSLROOTCERT.
var sslModes = []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

// openPostgres opens a store whose waiters are woken through a connection of their own. The
// connection goes to the same server, or to the host that listen names. There is none if listen is
// false, or if pooled is true without listen, because a pooler does not support LISTEN.
func openPostgres(ctx context.Context, url string, create bool) (driver.Driver, error) {
	address, err := newPostgresAddress(url)
	if err != nil {
		return nil, err
	}
	u, config := address.u, address.config()
	listen := u.Options.Get("listen")
	pooled, err := u.Bool("pooled", false)
	if err != nil {
		return nil, err
	}
	if pooled {
		config.DefaultQueryExecMode = pgx.QueryExecModeExec // so that it prepares no statement
		if listen == "" {
			listen = "false"
		}
	}
	opts := &sqllock.Options{}
	if listen != "false" {
		where := config.Copy()
		if listen != "" {
			host, port, err := net.SplitHostPort(listen)
			n, err2 := strconv.ParseUint(port, 10, 16)
			if err != nil || err2 != nil {
				return nil, u.Wrong("listen is false or host:port")
			}
			address.at(where, host, uint16(n))
		}
		opts.Listen = pglisten.NewWith(where, address.refresh)
	}
	return openDatabase(ctx, u, address.open(config), sqllock.NewPostgres, opts, create)
}

// A postgresAddress tells how to connect to the server of a URL. It includes the environment, in
// which PGPASSFILE, PGSSLCERT and others name files as well.
type postgresAddress struct {
	u  *storeurl.URL
	mu sync.Mutex

	last *pgx.ConnConfig // guarded by mu; the last configuration that could be read
}

func newPostgresAddress(url string) (*postgresAddress, error) {
	u, err := storeurl.Parse(url, postgresForm)
	if err != nil {
		return nil, err
	}
	config, err := postgresConfig(u)
	return &postgresAddress{u: u, last: config}, err
}

// config returns the configuration for a new connection. While its files cannot be read, that is
// the last one that could be.
func (a *postgresAddress) config() *pgx.ConnConfig {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now, err := postgresConfig(a.u); err == nil {
		a.last = now
	}
	return a.last.Copy()
}

// refresh rereads passwords and certificates before each new connection.
func (a *postgresAddress) refresh(_ context.Context, of *pgx.ConnConfig) error {
	now := a.config()
	of.Password, of.TLSConfig, of.Fallbacks = now.Password, now.TLSConfig, now.Fallbacks
	a.at(of, of.Host, of.Port)
	return nil
}

// at makes all attempts of config use one address. For some sslmodes libpq tries an address twice.
// The certificate must be for this host, unless the URL names another.
func (a *postgresAddress) at(config *pgx.ConnConfig, host string, port uint16) {
	config.Host, config.Port = host, port
	ways := []*tls.Config{config.TLSConfig}
	for _, f := range config.Fallbacks {
		f.Host, f.Port = host, port
		ways = append(ways, f.TLSConfig)
	}
	for _, w := range ways {
		if w != nil && w.ServerName != "" && a.u.Options.Get("server_name") == "" {
			w.ServerName = host
		}
	}
}

// open opens a pool without pgx's pings, because package dialled decides whether a connection is
// alive.
func (a *postgresAddress) open(config *pgx.ConnConfig) *sql.DB {
	never := stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false })
	connector := stdlib.GetConnector(*config, stdlib.OptionBeforeConnect(a.refresh), never)
	return dialled.Open(&paced{Connector: connector, refuses: postgresRefuses})
}

// postgresRefuses reports whether the server refused the user, the password or the certificate.
func postgresRefuses(err error) bool {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	return ok && strings.HasPrefix(answer.Code, "28")
}

// postgresConfig returns the configuration of u. Parts that u lacks come from the environment, as
// for any client of PostgreSQL.
func postgresConfig(u *storeurl.URL) (*pgx.ConnConfig, error) {
	addr, name, err := databaseAt(u, "5432")
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(addr) // databaseAt returns a valid address
	words := map[string]string{"host": host, "port": port, "dbname": name, "connect_timeout": "10"}
	if u.User != "" {
		words["user"] = u.User
	}
	if password := u.Password.Now(); password != "" {
		words["password"] = password
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
		words["sslmode"] = "disable" // u.TLS is used instead
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
		config.TLSConfig = u.TLS.Config()
	}
	return config, nil
}
