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
	serial       string // type of an automatically counted number
	isolation    sql.IsolationLevel
	create, drop string // statements for a space; %s is its name
}

var databases = map[fence.Dialect]database{
	fence.SQLite:   {serial: "INTEGER PRIMARY KEY"},
	fence.Postgres: {"BIGSERIAL PRIMARY KEY", sql.LevelReadCommitted, "CREATE SCHEMA %s", "DROP SCHEMA IF EXISTS %s CASCADE"},
	// MySQL's default level locks gaps between rows. That causes deadlocks without a conflict.
	fence.MySQL: {"BIGINT AUTO_INCREMENT PRIMARY KEY", sql.LevelReadCommitted, "CREATE DATABASE %s", "DROP DATABASE IF EXISTS %s"},
}

// spacePrefix shows operators what the schema or database is for.
const spacePrefix = "leasehold_demo_"

// inFile is the scheme of books that are in a file.
const inFile = "sqlite:"

// createBooks creates empty books: a file in dir, or a space on the server of url. The error wraps
// stores.ErrURL if url is malformed.
func createBooks(ctx context.Context, url, dir string) (*books, error) {
	p := place{URL: url, Space: spacePrefix + strings.ToLower(rand.Text())}
	drop := func(context.Context) error { return nil } // the file is removed with dir
	if url == "" {
		p = place{URL: inFile + filepath.Join(dir, "books-"+rand.Text()+".db")}
	} else {
		drop = func(ctx context.Context) error {
			if _, err := p.inSpace(ctx, func(d database) string { return d.drop }); err != nil {
				return fmt.Errorf("remove the books, which are in %s: %w", p.Space, err)
			}
			return nil
		}
		asked, err := p.inSpace(ctx, func(d database) string { return d.create })
		if asked && err != nil { // perhaps only the answer was lost
			err = fmt.Errorf("in %s: %w", p.Space, err)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer cancel()
			_ = drop(ctx) // after a refusal there is nothing, and this may be refused as well
		}
		if err != nil {
			return nil, fmt.Errorf("create the books: %w", err)
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

// A place says where books are.
type place struct {
	URL   string `json:"url"`
	Space string `json:"space"` // schema or database; "" for a file
}

// inSpace runs a statement that creates or drops the space. It reports whether the server was
// asked.
func (p place) inSpace(ctx context.Context, statement func(d database) string) (asked bool, err error) {
	db, dialect, err := stores.OpenDatabase(p.URL, "")
	if err != nil {
		return false, err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	_, err = conn.ExecContext(ctx, fmt.Sprintf(statement(databases[dialect]), p.Space))
	return true, err
}

// open opens existing books.
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
	b.db.SetMaxOpenConns(4) // per process; actors that think need no connection
	b.guard, err = fence.NewSQL(b.dialect, "")
	return b, err
}

// sqliteDSN returns the data source name of books, or of a lock store for this demo alone. Its
// processes wait for each other instead of failing.
func sqliteDSN(path string) string {
	options := url.Values{
		"_busy_timeout": {"10000"},     // milliseconds; longer than any write of the demo
		"_txlock":       {"immediate"}, // because a transaction that begins as a reader cannot wait for its write
		"_synchronous":  {"FULL"},      // a commit survives a power cut
		"_error_rc":     {"1"},         // otherwise the error for a missing folder is "out of memory"
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: options.Encode()}).String()
}
