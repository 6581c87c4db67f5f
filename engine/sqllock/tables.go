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

// querier is a database, a connection or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
}

// server is what the dialects of database servers share: how the tables are recognized.
type server struct {
	engine     string
	version    int64  // of the tables
	prefix     string // of the tables, with their schema
	codeOf     func(err error) string
	codes      map[string]error // what errors of the database mean
	busyCode   map[string]bool  // nothing was changed: try again
	serialCode string           // see dialect.serial; "": there is none
	// caused is the meaning of an error that a statement of ours causes on purpose; nil of any other.
	caused func(code string, err error) error
	// alien returns how the table of locks is not as the schema file makes it; "": it is.
	alien func(ctx context.Context, q querier) (string, error)
}

func (*server) intact() error { return nil }

func (*server) inside(text string) string { return text }

func (s *server) busy(err error) bool { return err != nil && s.busyCode[s.codeOf(err)] }

func (s *server) serial(err error) bool {
	return err != nil && s.serialCode != "" && s.codeOf(err) == s.serialCode
}

func (s *server) explain(err error) error {
	if err == nil {
		return nil
	}
	code := s.codeOf(err)
	if means := s.caused(code, err); means != nil && !explained(err) {
		return onPurpose{means, err}
	}
	return explainBy(s.codes, code, err)
}

func (s *server) check(ctx context.Context, db *sql.DB) error {
	version, err := s.recognize(ctx, db)
	if err == nil && version == 0 {
		err = fmt.Errorf("%w (%s)", ErrNoSchema, s.engine)
	}
	return cmp.Or(err, former(version, s.version))
}

// recognize returns the version of the tables, 0 if there are none. It refuses those that are somebody
// else's, or of a version that is not known. It only reads.
func (s *server) recognize(ctx context.Context, q querier) (version int64, err error) {
	var found sql.NullInt64
	err = s.explain(q.QueryRowContext(ctx, strings.ReplaceAll("SELECT max(version) FROM {p}meta", "{p}", s.prefix)).Scan(&found))
	version = found.Int64
	switch {
	case errors.Is(err, ErrNoSchema):
		return 0, nil
	case err != nil:
		return 0, err
	case !found.Valid:
		return 0, nil // creating them was interrupted
	case strange(version, s.version) != "":
		return 0, s.refuse(strange(version, s.version))
	}
	for _, text := range probes(version) {
		var none any
		err = q.QueryRowContext(ctx, strings.ReplaceAll(text, "{p}", s.prefix)).Scan(&none)
		if err = s.explain(err); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return 0, err
		}
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

// strange says what is wrong with the tables' version; "": it is one of ours, the newest of which is known.
func strange(version, known int64) string {
	switch {
	case version > known:
		return fmt.Sprintf("its tables are of version %d, from a newer Leasehold; this one knows %d", version, known)
	case version < oldestVersion:
		return fmt.Sprintf("its tables are of the unknown version %d", version)
	}
	return ""
}

// former refuses tables that Migrate has yet to bring up to date.
func former(version, known int64) error {
	if version >= known {
		return nil
	}
	return fmt.Errorf("%w: they are of version %d, from an older Leasehold", ErrFormer, version)
}

// probes fail if a table of that version or a column of it is missing.
func probes(version int64) []string {
	return []string{probe, probePlaces, probeRecall}[:version-oldestVersion+1]
}
