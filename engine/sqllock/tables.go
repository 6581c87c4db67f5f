package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/driver"
)

// A querier is a database, a connection or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
}

// server is the part that the dialects of database servers share: it recognizes the tables and
// classifies errors.
type server struct {
	engine     string
	version    int64  // of the tables
	prefix     string // of the tables, with their schema
	codeOf     func(err error) string
	codes      map[string]error // by code: the meaning of the database's errors
	busyCode   map[string]bool  // by code: nothing was changed, try again
	serialCode string           // the code that dialect.serial reports; "": there is none
	// caused returns the meaning of an error that a statement of ours causes on purpose, and nil
	// for any other.
	caused func(code string, err error) error
	// alien returns how the table of locks differs from the schema file; "": it does not.
	alien func(ctx context.Context, q querier) (string, error)
}

func (*server) intact() error { return nil }

func (*server) inside(text string) string { return text }

func (s *server) busy(err error) bool { return err != nil && s.busyCode[s.codeOf(err)] }

func (s *server) serial(err error) bool {
	return err != nil && s.serialCode != "" && s.codeOf(err) == s.serialCode
}

func (s *server) explain(err error) error {
	if err == nil || explained(err) {
		return err
	}
	code := s.codeOf(err)
	if means := s.caused(code, err); means != nil {
		return onPurpose{means, err}
	}
	if means := s.codes[code]; means != nil {
		return fmt.Errorf("%w: %w", means, err)
	}
	return err
}

func (s *server) check(ctx context.Context, db *sql.DB) error {
	version, err := s.recognize(ctx, db)
	if err == nil && version == 0 {
		err = fmt.Errorf("%w (%s)", ErrNoSchema, s.engine)
	}
	return cmp.Or(err, former(version, s.version))
}

// recognize returns the version of the tables, or 0 if there are none. It refuses tables that
// belong to somebody else or have an unknown version. It only reads. Its caller explains errors of
// the client.
func (s *server) recognize(ctx context.Context, q querier) (version int64, err error) {
	var found sql.NullInt64
	err = q.QueryRowContext(ctx, strings.ReplaceAll("SELECT max(version) FROM {p}meta", "{p}", s.prefix)).Scan(&found)
	version = found.Int64
	switch {
	case errors.Is(s.explain(err), ErrNoSchema):
		return 0, nil
	case err != nil:
		return 0, err
	case !found.Valid:
		return 0, nil // creating them was interrupted
	case strange(version, s.version) != "":
		return 0, s.refuse(strange(version, s.version))
	}
	if err := probed(ctx, q, version, s.prefix); err != nil {
		return 0, err
	}
	why, err := s.alien(ctx, q)
	if err == nil && why != "" {
		err = s.refuse(why)
	}
	return version, err
}

func (s *server) refuse(why string) error {
	return fmt.Errorf("%w: %s: %s", driver.ErrCorrupt, s.engine, why)
}

// strange returns what is wrong with the version of the tables. It returns "" for a version of ours
// up to known.
func strange(version, known int64) string {
	switch {
	case version > known:
		return fmt.Sprintf("its tables are of version %d, from a newer Leasehold; this one knows %d", version, known)
	case version < oldestVersion:
		return fmt.Sprintf("its tables are of the unknown version %d", version)
	}
	return ""
}

// former refuses tables that Migrate has yet to upgrade.
func former(version, known int64) error {
	if version >= known {
		return nil
	}
	return fmt.Errorf("%w: they are of version %d, from an older Leasehold", ErrFormer, version)
}

// probed returns an error if a table or column of that version is missing.
func probed(ctx context.Context, q querier, version int64, prefix string) error {
	for _, text := range []string{probe, probePlaces, probeRecall}[:version-oldestVersion+1] {
		var none any
		err := q.QueryRowContext(ctx, strings.ReplaceAll(text, "{p}", prefix)).Scan(&none)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	return nil
}
