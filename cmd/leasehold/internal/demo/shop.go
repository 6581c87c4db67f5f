package demo

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/stores"
)

// ShopForms are the forms of URL that Stage.Shop accepts.
const ShopForms = "postgres://HOST/DB or mysql://HOST/DB"

// A database describes a type of database server. Each run uses a separate file, PostgreSQL schema
// or MySQL database.
type database struct {
	serial       string // the type of a number that it counts up
	isolation    sql.IsolationLevel
	create, drop string // statements for a space, before and around its name
}

var databases = map[fence.Dialect]database{
	fence.SQLite:   {serial: "INTEGER PRIMARY KEY"},
	fence.Postgres: {"BIGSERIAL PRIMARY KEY", sql.LevelReadCommitted, "CREATE SCHEMA %s", "DROP SCHEMA %s CASCADE"},
	// The default of MySQL locks gaps between rows, and so finds deadlocks where there are none.
	fence.MySQL: {"BIGINT AUTO_INCREMENT PRIMARY KEY", sql.LevelReadCommitted, "CREATE DATABASE %s", "DROP DATABASE %s"},
}

// spacePrefix shows operators whose schema or database it is.
const spacePrefix = "leasehold_demo_"

// inFile is the scheme of books in a file.
const inFile = "sqlite:"

// createBooks creates empty books: a file in dir, or a space on the server of url. An error that
// wraps stores.ErrURL means that url cannot be used as it is written.
func createBooks(ctx context.Context, url, dir string) (*books, error) {
	p := place{URL: url, Space: spacePrefix + strings.ToLower(rand.Text())}
	drop := func(context.Context) error { return nil } // the file goes with dir
	if url == "" {
		p = place{URL: inFile + filepath.Join(dir, "books-"+rand.Text()+".db")}
	} else {
		if err := p.inSpace(ctx, func(d database) string { return d.create }); err != nil {
			return nil, fmt.Errorf("create the books: %w", err)
		}
		drop = func(ctx context.Context) error {
			if err := p.inSpace(ctx, func(d database) string { return d.drop }); err != nil {
				return fmt.Errorf("remove the books, which are in %s: %w", p.Space, err)
			}
			return nil
		}
	}
	b, err := p.open()
	if err == nil {
		err = b.prepare(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the books: %w", err), drop(context.WithoutCancel(ctx)))
	}
	b.drop = func(ctx context.Context) error { return errors.Join(b.close(), drop(ctx)) }
	return b, nil
}

// A place is where books are.
type place struct {
	URL   string `json:"url"`
	Space string `json:"space"` // schema or database; "" in a file
}

// inSpace creates or drops the space.
func (p place) inSpace(ctx context.Context, statement func(d database) string) error {
	db, dialect, err := stores.OpenDatabase(p.URL, "")
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, fmt.Sprintf(statement(databases[dialect]), p.Space))
	return err
}

// open opens books that were created before.
func (p place) open() (*books, error) {
	b := &books{place: p}
	var err error
	if path, ok := strings.CutPrefix(p.URL, inFile); ok {
		b.dialect = fence.SQLite
		b.db, err = sql.Open("sqlite", sqliteDSN(path))
	} else {
		b.db, b.dialect, err = stores.OpenDatabase(p.URL, p.Space)
	}
	if err != nil {
		return nil, err
	}
	b.db.SetMaxOpenConns(4) // for each process: actors that think need none
	b.guard, err = fence.NewSQL(b.dialect, "")
	return b, err
}

// sqliteDSN is the data source name of books, or of locks for this demo alone. Processes wait for
// each other rather than fail.
func sqliteDSN(path string) string {
	options := url.Values{
		"_busy_timeout": {"10000"},     // milliseconds; longer than any write of ours takes
		"_txlock":       {"immediate"}, // a transaction that starts as a reader cannot wait for its write
		"_synchronous":  {"FULL"},      // a commit survives a power cut
		"_error_rc":     {"1"},         // else a folder that is missing reads "out of memory"
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: options.Encode()}).String()
}
