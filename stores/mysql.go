package stores

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/dialled"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

var mysqlForm = storeurl.Form{
	Schemes: []string{"mysql"},
	Options: append([]string{"prefix", "schema"}, storeurl.ServerOptions...),
}

func openMySQL(ctx context.Context, url string, create bool) (driver.Driver, error) {
	u, config, err := mysqlConfig(url)
	if err != nil {
		return nil, err
	}
	db, err := connectMySQL(u, config)
	if err != nil {
		return nil, err
	}
	return openDatabase(ctx, u, db, sqllock.NewMySQL, &sqllock.Options{}, create)
}

func mysqlConfig(url string) (*storeurl.URL, *mysql.Config, error) {
	u, err := storeurl.Parse(url, mysqlForm)
	if err != nil {
		return nil, nil, err
	}
	addr, name, err := databaseAt(u, "3306")
	if err != nil {
		return nil, nil, err
	}
	config := mysql.NewConfig()
	config.Net, config.Addr, config.DBName, config.User = "tcp", addr, name, u.User
	config.Timeout = 10 * time.Second  // for connecting; calls end with their contexts
	config.Logger = &mysql.NopLogger{} // errors are returned instead
	return u, config, nil
}

func connectMySQL(u *storeurl.URL, config *mysql.Config) (*sql.DB, error) {
	err := config.Apply(mysql.BeforeConnect(func(_ context.Context, c *mysql.Config) error {
		c.Passwd = u.Password.Now()
		if u.TLS != nil {
			c.TLS = u.TLS.Config()
		}
		return nil
	}))
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, u.Wrong("the address cannot be used")
	}
	return dialled.Open(&paced{Connector: connector, refuses: mysqlRefuses}), nil
}

// mysqlRefuses reports whether the server refused the user or the password.
func mysqlRefuses(err error) bool {
	// These are errors of MySQL and MariaDB, which has another number for a locked account.
	const hostBlocked, accessDenied, withoutPassword, expired, locked, lockedMariaDB = 1129, 1045, 1698, 1862, 3118, 4151
	answer, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains([]uint16{hostBlocked, accessDenied, withoutPassword, expired, locked, lockedMariaDB}, answer.Number)
}
