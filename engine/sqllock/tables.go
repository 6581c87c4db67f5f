package sqllock

import (
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
	ours, err := s.recognize(ctx, db)
	if err == nil && !ours {
		err = fmt.Errorf("%w (%s)", ErrNoSchema, s.engine)
	}
	return err
}

// recognize reports whether the tables are there. It refuses those that are somebody
// else's, or of another version. It only reads.
func (s *server) recognize(ctx context.Context, q querier) (ours bool, err error) {
	var version sql.NullInt64
	err = s.explain(q.QueryRowContext(ctx, strings.ReplaceAll("SELECT max(version) FROM {p}meta", "{p}", s.prefix)).Scan(&version))
	switch {
	case errors.Is(err, ErrNoSchema):
		return false, nil
	case err != nil:
		return false, err
	case !version.Valid:
		return false, nil // creating them was interrupted
	case strange(version.Int64) != "":
		return false, s.refuse(strange(version.Int64))
	}
	var none any
	err = q.QueryRowContext(ctx, strings.ReplaceAll(probe, "{p}", s.prefix)).Scan(&none)
	if err = s.explain(err); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return false, err
	}
	why, err := s.alien(ctx, q)
	if err == nil && why != "" {
		err = s.refuse(why)
	}
	return err == nil, err
}

func (s *server) refuse(why string) error {
	return fmt.Errorf("%w: %s: %s", driver.ErrCorrupt, s.engine, why)
}

// strange says what is wrong with the tables' version; "": it is ours.
func strange(version int64) string {
	switch {
	case version > schemaVersion:
		return fmt.Sprintf("its tables are of version %d, from a newer Leasehold; this one knows %d", version, schemaVersion)
	case version != schemaVersion:
		return fmt.Sprintf("its tables are of the unknown version %d", version)
	}
	return ""
}
