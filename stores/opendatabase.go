package stores

import (
	"database/sql"
	"fmt"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/storeurl"
)

// OpenDatabase opens the database of a postgres: or mysql: URL for other uses than locks,
// without its tables. space, if not "", replaces the URL's schema (PostgreSQL) or database
// (MySQL). OpenDatabase does no I/O except to read the files that url names, which each
// connection reads again. Errors contain no password.
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
	address, err := newPostgresAddress(url)
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
	u, config, err := mysqlConfig(url)
	if err != nil {
		return nil, err
	}
	if space != "" {
		config.DBName = space
	}
	config.ClientFoundRows = true // rows are counted as other databases do
	return connectMySQL(u, config)
}
