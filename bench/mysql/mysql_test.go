// Package mysql_test compares Leasehold on MariaDB with GET_LOCK, and with what one would
// write by hand.
package mysql_test

import (
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/bench/databases"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

var mariaDB = databases.Server{
	Name: "MariaDB", Own: "GET_LOCK", OwnKeys: 1, Open: open,
	Drivers: []databases.Driver{{Name: "leasehold", Polls: databases.Polling, New: newDriver}},
	Create:  `CREATE TABLE IF NOT EXISTS bare (name VARBINARY(255) PRIMARY KEY, owner VARBINARY(64) NOT NULL, expires DATETIME(6) NOT NULL)`,
	Take: `INSERT INTO bare VALUES (?, ?, NOW(6) + INTERVAL 10 SECOND) ON DUPLICATE KEY UPDATE
		owner = IF(expires <= NOW(6), VALUES(owner), owner), expires = IF(owner = VALUES(owner), VALUES(expires), expires)`,
	Free:   `UPDATE bare SET expires = NOW(6) WHERE name = ? AND owner = ?`,
	Lock:   `SELECT GET_LOCK(?, 3600)`,
	Unlock: `SELECT RELEASE_LOCK(?)`,
}

func TestMain(m *testing.M) { mariaDB.Engine().Main(m) }

// BenchmarkMySQL measures on a MariaDB that it starts itself, with its own defaults.
func BenchmarkMySQL(b *testing.B) {
	server := servers.StartMariaDB(b, "--max-connections=500")
	contest.Server("MariaDB " + server.Must(b, "SELECT VERSION()"))
	mariaDB.Compare(b, server.DSN())
}

// open counts packets: there is one for a statement.
func open(dsn string) (*sql.DB, func() int64, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, nil, err
	}
	config.InterpolateParams = true // else what is not prepared takes two round trips
	var wire contest.Wire
	config.DialFunc = wire.Dial
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, nil, err
	}
	return sql.OpenDB(connector), wire.Writes.Load, nil
}

func newDriver(_ string, db *sql.DB) (*sqllock.Driver, error) { return sqllock.NewMySQL(db, nil) }
