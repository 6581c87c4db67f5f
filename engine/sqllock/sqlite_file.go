package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// check implements dialect.
func (s *sqlite) check(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := s.locate(ctx, conn); err != nil {
		return err
	}
	version, err := s.recognize(ctx, conn)
	switch {
	case err != nil:
		return err
	case version == 0:
		return fmt.Errorf("%w (sqlite%s)", ErrNoSchema, s.at())
	case former(version, schemaVersion) != nil:
		return former(version, schemaVersion)
	}
	return s.opened()
}

// create implements dialect.
func (s *sqlite) create(ctx context.Context, d *Driver) error {
	var version int64
	err := d.retry(ctx, nil, func(runner) (err error) {
		version, err = s.prepareFile(ctx, d.db)
		return err
	})
	if err != nil || version == schemaVersion {
		return err
	}
	return d.inTx(ctx, func(tx *sql.Tx) error {
		version, err := s.recognize(ctx, tx)
		if err != nil || version == schemaVersion {
			return err
		}
		schema := sqliteSchema3
		if version == 0 {
			schema = sqliteSchema + schema
		}
		// If another process creates them now, this one gets a busy error and recognizes them next
		// time.
		return run(ctx, tx, schema, s.prefix)
	})
}

// prepareFile switches a file to WAL mode, if it is Leasehold's or may become so. Readers then do
// not delay writers, and a commit is one fsync. It leaves PRAGMA synchronous, and so the durability
// of a commit, as the connection was opened; SQLite's default is FULL.
func (s *sqlite) prepareFile(ctx context.Context, db *sql.DB) (version int64, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := s.locate(ctx, conn); err != nil {
		return 0, err
	}
	version, err = s.recognize(ctx, conn)
	if err != nil {
		return 0, err
	}
	if err := s.opened(); err != nil {
		return 0, err
	}
	var mode string
	if err := conn.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode); err != nil {
		return 0, err
	}
	if !strings.EqualFold(mode, "wal") {
		return 0, fmt.Errorf("%w: sqlite%s cannot be in WAL mode, only %s", driver.ErrUnsupported, s.at(), mode)
	}
	return version, nil
}

// locate finds the file, and refuses places where SQLite cannot keep processes apart. It never
// opens the file: closing it would drop the locks that SQLite's own descriptors in this process
// have on it.
func (s *sqlite) locate(ctx context.Context, conn *sql.Conn) error {
	path, err := mainFile(ctx, conn)
	if err != nil {
		return err
	}
	if path == "" {
		return fmt.Errorf("%w: a SQLite database in memory is seen by one connection only: use a file, or package memory", driver.ErrUnsupported)
	}
	kind, err := networkFS(path)
	if err != nil {
		return err
	}
	if kind != "" {
		return fmt.Errorf("%w: %q is on a network file system (%s): SQLite's WAL mode needs memory that all processes share, on one machine",
			driver.ErrUnsupported, path, kind)
	}
	s.file.CompareAndSwap(nil, &sqliteFile{path: path})
	return oneName(path)
}

// mainFile returns the path of the database, or "" if it is in memory. It uses the pragma as a
// statement. The table-valued function would read the file, which may be no database.
func mainFile(ctx context.Context, conn *sql.Conn) (path string, err error) {
	err = each(ctx, conn, func(rows *sql.Rows) error {
		var number int
		var name, file string
		err := rows.Scan(&number, &name, &file)
		if name == "main" {
			path = file
		}
		return err
	}, "PRAGMA database_list")
	return path, err
}

// recognize returns the version of the tables, or 0 if there are none. It refuses a database with
// tables that belong to somebody else. It only reads.
func (s *sqlite) recognize(ctx context.Context, q querier) (version int64, err error) {
	var mine, others int
	err = q.QueryRowContext(ctx, `
		SELECT count(*) FILTER (WHERE mine), count(*) FILTER (WHERE NOT mine) FROM (
			SELECT lower(name) IN (lower(?1) || 'locks', lower(?1) || 'meta') AS mine
			FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\_%' ESCAPE '\'
				AND lower(name) NOT IN (lower(?1) || 'fences', lower(?1) || 'places', lower(?1) || 'beats'))`, s.prefix).Scan(&mine, &others)
	switch {
	case err != nil:
		return 0, err
	case mine > 0:
		return s.recognizeVersion(ctx, q)
	case others > 0 && !s.allowForeign:
		return 0, s.refuse("it has tables of another program and none of Leasehold's; Options.AllowForeign adds them")
	}
	return 0, nil
}

// recognizeVersion refuses tables with our names that are not ours or have an unknown version.
func (s *sqlite) recognizeVersion(ctx context.Context, q querier) (int64, error) {
	var version sql.NullInt64
	err := q.QueryRowContext(ctx, "SELECT max(version) FROM "+s.prefix+"meta WHERE lost >= 0").Scan(&version)
	switch {
	case missing(err), err == nil && !version.Valid:
		return 0, s.refuse("it has tables with names of Leasehold's that are another program's")
	case err != nil:
		return 0, err
	case strange(version.Int64, schemaVersion) != "":
		return 0, s.refuse(strange(version.Int64, schemaVersion))
	}
	if err = probed(ctx, q, version.Int64, s.prefix); missing(err) {
		err = s.refuse("it has tables with names of Leasehold's that are another program's")
	}
	return version.Int64, err
}

func missing(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "no such table") || strings.Contains(err.Error(), "no such column"))
}

func (s *sqlite) refuse(why string) error {
	return fmt.Errorf("%w: sqlite%s: %s", driver.ErrCorrupt, s.at(), why)
}
