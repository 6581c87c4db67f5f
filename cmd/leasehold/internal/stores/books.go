package stores

import (
	"database/sql"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/leasehold-go/leasehold/fence"
)

// OpenDatabase opens a database for other things than locks, by the URL of a postgres: or
// mysql: store, without its tables. space, if not "", is the schema (PostgreSQL) or the
// database (MySQL) to work in instead of that of url. It does no I/O but read what files
// url names. Errors contain no password.
func OpenDatabase(url, space string) (*sql.DB, fence.Dialect, error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch scheme {
	case "postgres":
		db, err := postgresSpace(rest, space)
		return db, fence.Postgres, err
	case "mysql":
		db, err := mysqlSpace(rest, space)
		return db, fence.MySQL, err
	}
	return nil, 0, fmt.Errorf("%w: want postgres://HOST/DB or mysql://HOST/DB", ErrURL)
}

func postgresSpace(rest, space string) (*sql.DB, error) {
	u, err := parseServer("postgres", rest, postgresOptions, false)
	if err != nil {
		return nil, err
	}
	config, err := u.postgresConfig()
	if err != nil {
		return nil, err
	}
	if space != "" {
		config.RuntimeParams["search_path"] = space
	}
	return stdlib.OpenDB(*config), nil
}

func mysqlSpace(rest, space string) (*sql.DB, error) {
	u, err := parseServer("mysql", rest, mysqlOptions, false)
	if err != nil {
		return nil, err
	}
	config, err := u.mysqlConfig()
	if err != nil {
		return nil, err
	}
	if space != "" {
		config.DBName = space
	}
	config.ClientFoundRows = true // rows are counted as other databases do
	return u.openMySQL(config)
}
