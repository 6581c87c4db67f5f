package stores

import (
	"context"
	"database/sql"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/sqllock"
)

// mysqlOptions are what may stand after the "?" of a MySQL URL.
var mysqlOptions = []string{"prefix", "schema", "password_file", "tls", "ca_file", "cert_file", "key_file", "server_name"}

func openMySQL(_ context.Context, rest string) (driver.Driver, string, error) {
	u, err := parseServer("mysql", rest, mysqlOptions, false)
	if err != nil {
		return nil, "", err
	}
	config, err := u.mysqlConfig()
	if err != nil {
		return nil, "", err
	}
	db, err := u.openMySQL(config)
	if err != nil {
		return nil, "", err
	}
	return openDatabase(u, db, sqllock.NewMySQL, &sqllock.Options{})
}

func (u *serverURL) mysqlConfig() (*mysql.Config, error) {
	addr, name, err := u.databaseAt("3306")
	if err != nil {
		return nil, err
	}
	config := mysql.NewConfig()
	config.Net, config.Addr, config.DBName, config.User, config.Passwd, config.TLS = "tcp", addr, name, u.user, u.password, u.tls
	config.Timeout = 10 * time.Second  // to connect; calls end with their contexts
	config.Logger = &mysql.NopLogger{} // what goes wrong comes as an error
	return config, nil
}

func (u *serverURL) openMySQL(config *mysql.Config) (*sql.DB, error) {
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, u.wrong("the address cannot be used")
	}
	return sql.OpenDB(connector), nil
}
