package stores

import (
	"database/sql"
	"fmt"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// OpenDatabase opens a database for other things than locks, by the URL of a postgres: or
// mysql: store, without its tables. space, if not "", is the schema (PostgreSQL) or the
// database (MySQL) to work in instead of that of url. It does no I/O but read what files
// url names, which each connection reads again. Errors contain no password.
func OpenDatabase(url, space string) (*sql.DB, fence.Dialect, error) {
	switch scheme, _, _ := storeurl.Cut(url); scheme {
	case "postgres":
		db, err := postgresSpace(url, space)
		return db, fence.Postgres, err
	case "mysql":
		db, err := mysqlSpace(url, space)
		return db, fence.MySQL, err
	}
	return nil, 0, fmt.Errorf("%w: want postgres://HOST/DB or mysql://HOST/DB", ErrURL)
}

func postgresSpace(url, space string) (*sql.DB, error) {
	u, err := storeurl.Parse(url, postgresForm)
	if err != nil {
		return nil, err
	}
	address, err := newPostgresAddress(u)
	if err != nil {
		return nil, err
	}
	config := address.config()
	if space != "" {
		config.RuntimeParams["search_path"] = space
	}
	return address.open(config), nil
}

func mysqlSpace(url, space string) (*sql.DB, error) {
	u, err := storeurl.Parse(url, mysqlForm)
	if err != nil {
		return nil, err
	}
	config, err := mysqlConfig(u)
	if err != nil {
		return nil, err
	}
	if space != "" {
		config.DBName = space
	}
	config.ClientFoundRows = true // rows are counted as other databases do
	return connectMySQL(u, config)
}
