package sqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/fence"
)

func TestNumberedArguments(t *testing.T) {
	t.Parallel()
	text, order := numbered("INSERT ?2, ?1 WHERE a = ?2 AND b = '$[0]'")
	if text != "INSERT ?, ? WHERE a = ? AND b = '$[0]'" || !slices.Equal(order, []int{1, 0, 1}) {
		t.Errorf("%q, %v", text, order)
	}
}

var blank = regexp.MustCompile(`\{[a-z]+\}`)

// On every dialect each statement is complete: no placeholder is left, and MySQL's statements have
// as many arguments as question marks.
func TestStatementsAreComplete(t *testing.T) {
	t.Parallel()
	o, err := (&Options{Schema: "apart", Prefix: "mutex_"}).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	pg, err1 := NewPostgres(sql.OpenDB(script{}), &o)
	my, err2 := NewMySQL(sql.OpenDB(script{}), &o)
	lite, err3 := NewSQLite(sql.OpenDB(script{}), nil)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Driver{pg, my, lite} {
		texts := 0
		d.texts.each(func(text *string) {
			if blank.MatchString(*text) {
				t.Errorf("a blank in %s", *text)
			}
			if *text != "" {
				texts++
			}
		})
		if fields := reflect.TypeFor[statements]().NumField(); texts < fields-6 {
			t.Errorf("%d texts of %d fields", texts, fields)
		}
	}
	for text, order := range my.dialect.(*mysql).order {
		if len(order) > 0 && strings.Count(text, "?") != len(order) {
			t.Errorf("%d arguments in %s", len(order), text)
		}
	}
}

func TestOptionsOfOtherDialects(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"SQLite with a schema":     second(NewSQLite(sql.OpenDB(script{}), &Options{Schema: "apart"})),
		"Postgres in a file":       second(NewPostgres(sql.OpenDB(script{}), &Options{AllowForeign: true})),
		"MySQL in a file":          second(NewMySQL(sql.OpenDB(script{}), &Options{AllowForeign: true})),
		"Postgres at a path":       second(NewPostgres(sql.OpenDB(script{}), &Options{Path: "locks.db"})),
		"MySQL at a path":          second(NewMySQL(sql.OpenDB(script{}), &Options{Path: "locks.db"})),
		"a schema that is no name": second(NewPostgres(sql.OpenDB(script{}), &Options{Schema: `a"; DROP`})),
		"no database":              second(NewMySQL(nil, nil)),
	} {
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func second(_ *Driver, err error) error { return err }

// stateError is an error as PostgreSQL's clients report it; numberError is one of MySQL's.
type stateError string

func (stateError) Error() string      { return "state" }
func (e stateError) SQLState() string { return string(e) }

// violation is a protocol_violation with a text.
type violation string

func (e violation) Error() string  { return string(e) }
func (violation) SQLState() string { return "08P01" }

type numberError struct{ Number uint16 }

func (*numberError) Error() string { return "number" }

func TestErrorsOfServers(t *testing.T) {
	t.Parallel()
	pg, err1 := NewPostgres(sql.OpenDB(script{}), nil)
	my, err2 := NewMySQL(sql.OpenDB(script{}), nil)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		d    *Driver
		err  error
		busy bool
		want error
	}{
		{pg, stateError("40P01"), true, nil},
		{pg, stateError("25006"), false, ErrReadOnly},
		{pg, fmt.Errorf("wrapped: %w", stateError("42501")), false, ErrDenied},
		{pg, errors.New("40P01"), false, nil},
		{pg, violation("bind message supplies 0 parameters"), false, ErrPooled},
		{pg, violation("server conn crashed?"), false, nil},
		{my, &numberError{1213}, true, nil},
		{my, fmt.Errorf("wrapped: %w", &numberError{1146}), false, ErrNoSchema},
		{my, fmt.Errorf("%w: %w", driver.ErrUnsupported, &numberError{1146}), false, driver.ErrUnsupported},
		{my, errors.Join(&numberError{1213}), true, nil}, // for rows that are read and closed
		{my, errors.Join(errors.New("alien"), &numberError{1969}), false, ErrTimeout},
		{my, errors.New("1213"), false, nil},
		{my, &numberError{1690}, false, ErrUncommitted},
		{my, fmt.Errorf("BIGINT value is out of range in '(1 + if(, 9223372036854775806, 0))': %w", &numberError{1690}), false, ErrReadOnly},
		{pg, stateError("22012"), false, ErrReadOnly},
	} {
		if got := test.d.dialect.busy(test.err); got != test.busy {
			t.Errorf("%v: busy %v", test.err, got)
		}
		got := test.d.dialect.explain(test.err)
		if !errors.Is(got, test.err) || explained(got) != (test.want != nil) || test.want != nil && !errors.Is(got, test.want) {
			t.Errorf("%v: explained as %v; want %v", test.err, got, test.want)
		}
	}
}

// A pinged is a connection whose pings return what ping returns.
type pinged struct {
	script
	ping func() error
}

func (p pinged) Connect(context.Context) (sqldriver.Conn, error) { return p, nil }
func (p pinged) Ping(context.Context) error                      { return p.ping() }

// A statement that the server ended because its caller's time was over has no answer. Some clients
// return only the server's error.
func TestEndOfACallIsNoTimeLimitOfTheServer(t *testing.T) {
	t.Parallel()
	var end func()
	ended := func() error { end(); return stateError("57014") }
	d := scripted(t, func(context.Context, *Driver, string, []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		return nil, ended()
	})
	tx, err := d.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	db := sql.OpenDB(pinged{script{func(context.Context, string, []sqldriver.NamedValue) ([][]sqldriver.Value, error) {
		return nil, ended()
	}}, ended})
	defer db.Close()
	first, err := NewPostgres(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	for name, call := range map[string]func(ctx context.Context) error{
		"a statement": func(ctx context.Context) error { return d.retry(ctx, nil, func(runner) error { return ended() }) },
		"CheckFence":  func(ctx context.Context) error { return d.CheckFence(ctx, tx, fence.LeaseOf("x", 7, "me")) },
		"the check":   func(ctx context.Context) error { _, err := first.ready(ctx); return err },
		"Migrate":     first.Migrate,
		"Ping":        first.Ping,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		end = cancel
		if err := call(ctx); !errors.Is(err, context.Canceled) || !unanswered(err) || errors.Is(err, ErrTimeout) {
			t.Errorf("%s: %v; want the error of the context", name, err)
		}
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"plain é": "plain é", "a\x00b\xff": "ab\uFFFD"} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}
