package sqllock

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

func TestNumberedArguments(t *testing.T) {
	t.Parallel()
	text, order := numbered("INSERT ?2, ?1 WHERE a = ?2 AND b = '$[0]'")
	if text != "INSERT ?, ? WHERE a = ? AND b = '$[0]'" || !slices.Equal(order, []int{1, 0, 1}) {
		t.Errorf("%q, %v", text, order)
	}
}

var blank = regexp.MustCompile(`\{[a-z]+\}`)

// Every statement is complete, on every dialect: none has a blank that was not filled in,
// and MySQL's have as many arguments as they take.
func TestStatementsAreComplete(t *testing.T) {
	t.Parallel()
	o, err := (&Options{Schema: "apart", Prefix: "mutex_"}).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	pg, err1 := NewPostgres(new(sql.DB), &o)
	my, err2 := NewMySQL(new(sql.DB), &o)
	lite, err3 := NewSQLite(new(sql.DB), nil)
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
		if fields := reflect.TypeFor[statements]().NumField(); texts < fields-4 {
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
		"SQLite with a schema":     second(NewSQLite(new(sql.DB), &Options{Schema: "apart"})),
		"Postgres in a file":       second(NewPostgres(new(sql.DB), &Options{AllowForeign: true})),
		"MySQL in a file":          second(NewMySQL(new(sql.DB), &Options{AllowForeign: true})),
		"Postgres at a path":       second(NewPostgres(new(sql.DB), &Options{Path: "locks.db"})),
		"MySQL at a path":          second(NewMySQL(new(sql.DB), &Options{Path: "locks.db"})),
		"a schema that is no name": second(NewPostgres(new(sql.DB), &Options{Schema: `a"; DROP`})),
		"no database":              second(NewMySQL(nil, nil)),
	} {
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func second(_ *Driver, err error) error { return err }

// stateError is how clients of PostgreSQL say it, numberError those of MySQL.
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
	pg, err1 := NewPostgres(new(sql.DB), nil)
	my, err2 := NewMySQL(new(sql.DB), nil)
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
		{my, errors.New("1213"), false, nil},
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

// What a row's JSON says to the statements that read it: the owner by name, and no status
// where it is a place in the queue.
func TestClaimsAsJSON(t *testing.T) {
	t.Parallel()
	text := list(claimRow{Ticket: 1, Owner: "me", Expires: 5}, claimRow{Ticket: 2, Owner: "it", Status: gone, Note: "<é>", Expires: 6})
	var back []claimRow
	if err := json.Unmarshal([]byte(text), &back); err != nil || len(back) != 2 || back[1].Note != "<é>" {
		t.Errorf("%v, %v", back, err)
	}
	if want := `[{"ticket":1,"owner":"me","expires":5,"since":0},{"ticket":2,"owner":"it","status":4,"expires":6,"since":0,"note":"\u003cé\u003e"}]`; text != want {
		t.Errorf("%s\nwant %s", text, want)
	}
	if text := list[claimRow](); text != "[]" {
		t.Errorf("no claims: %s", text)
	}
}

func TestNextAndCrowd(t *testing.T) {
	t.Parallel()
	free := lockRow{expires: 1000}
	held := lockRow{owner: "holder", expires: 1500}
	writers := []claimRow{row(1, "aaaaaaaa, and so on", exclusive, waiting, 0), row(2, "bbbbbbbb, and so on", exclusive, waiting, 0)}
	readers := []claimRow{row(1, "aaaaaaaa, and so on", shared, waiting, 0), row(2, "bbbbbbbb, and so on", shared, waiting, 0), row(3, "c", exclusive, waiting, 0)}
	for _, test := range []struct {
		lock   lockRow
		claims []claimRow
		next   []string
		crowd  int64
	}{
		{free, nil, nil, 0},
		{held, writers, nil, 1002},
		{free, writers, []string{"aaaaaaaa"}, 1002},
		{free, readers, []string{"aaaaaaaa", "bbbbbbbb"}, 1003},
		{free, []claimRow{row(1, "a", exclusive, evicted, 0)}, nil, 0},
		{free, []claimRow{row(1, "a", exclusive, gone, 0), row(2, "b", exclusive, waiting, 0)}, []string{""}, 1002},
	} {
		r := resource{now: 1000, lock: test.lock, claims: test.claims}
		if got := r.next(); !slices.Equal(got, test.next) {
			t.Errorf("%+v: next %q, want %q", test, got, test.next)
		}
		if got := r.crowd(); got != test.crowd {
			t.Errorf("%+v: crowd %d", test, got)
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
