package leasehold_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/memory"
)

// held is the one holder of a.
func held(t *testing.T, l *leasehold.Locker) leasehold.Holder {
	t.Helper()
	state, err := l.Inspect(t.Context(), "a")
	if err != nil || len(state.Holders) != 1 {
		t.Fatalf("%+v, %v", state, err)
	}
	return state.Holders[0]
}

func TestDetailsAreFilledIn(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	acquire(t, locks, "a")
	h := held(t, locks)
	host, _ := os.Hostname()
	program := filepath.Base(os.Args[0])
	if d := h.Details(); d.Host != host || d.PID != os.Getpid() || d.Program != program || d.User == "" || d.Started.IsZero() || d.Text != "" || d.Kind != "" || d.Link != "" {
		t.Errorf("%+v", d)
	}
	if !strings.HasPrefix(h.Note, host+" "+program+"[") || strings.Contains(h.Note, "=") {
		t.Errorf("the note is %q", h.Note)
	}
}

// What a call says counts before what Options say, and that before what is filled in.
func TestDetailsOfACall(t *testing.T) {
	opts := &leasehold.Options{Note: "of all", Details: leasehold.Details{Host: "web-7", Link: "https://a.example/", Labels: map[string]string{"team": "payments", "env": "live"}}}
	locks := newLocker(t, memory.New(), opts)
	opts.Details.Labels["team"] = "changed too late"
	lease := acquire(t, locks, "a")
	if d := held(t, locks).Details(); d.Host != "web-7" || d.Link != "https://a.example/" || d.Text != "of all" || d.Labels["team"] != "payments" || d.PID != os.Getpid() {
		t.Errorf("of all: %+v", d)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Unix(1764271024, 5)
	acquire(t, locks, "a", leasehold.Note("of one"), leasehold.WithDetails(leasehold.Details{
		User: "anna", PID: 7, Program: "backup", Started: began, Labels: map[string]string{"env": "test"}, Kind: leasehold.HolderReserved,
	}))
	h := held(t, locks)
	d := h.Details()
	if d.Host != "web-7" || d.User != "anna" || d.PID != 7 || d.Program != "backup" || !d.Started.Equal(began.Truncate(time.Second)) || d.Text != "of one" || d.Kind != leasehold.HolderReserved || h.Note != "of one" {
		t.Errorf("of one: %+v", d)
	}
	if want := map[string]string{"team": "payments", "env": "test"}; !maps.Equal(d.Labels, want) {
		t.Errorf("the labels are %v, want %v", d.Labels, want)
	}
}

// Of another process it is not known what it runs.
func TestDetailsOfAnotherProcess(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	acquire(t, locks, "a", leasehold.WithDetails(leasehold.Details{PID: os.Getpid() + 1}))
	if d := held(t, locks).Details(); d.PID != os.Getpid()+1 || d.Program != "" || !d.Started.IsZero() || d.Host == "" {
		t.Errorf("%+v", d)
	}
}

func TestSetNoteKeepsDetails(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	lease := acquire(t, locks, "a", leasehold.Note("begun"), leasehold.WithDetails(leasehold.Details{Host: "web-7", Labels: map[string]string{"team": "payments"}}))
	if err := lease.SetNote(t.Context(), "half done"); err != nil {
		t.Fatal(err)
	}
	if d := held(t, locks).Details(); d.Text != "half done" || d.Host != "web-7" || d.Labels["team"] != "payments" || d.PID != os.Getpid() {
		t.Errorf("%+v", d)
	}
	if err := lease.SetDetails(t.Context(), leasehold.Details{Kind: leasehold.HolderOnce, Labels: map[string]string{"exit": "0"}}); err != nil {
		t.Fatal(err)
	}
	if d := held(t, locks).Details(); d.Text != "half done" || d.Host != "web-7" || d.Kind != leasehold.HolderOnce || !maps.Equal(d.Labels, map[string]string{"team": "payments", "exit": "0"}) {
		t.Errorf("%+v", d)
	}
	wantErr(t, lease.SetDetails(t.Context(), leasehold.Details{Link: "javascript:alert(1)"}), leasehold.ErrInvalidOption)
	wantErr(t, lease.SetNote(t.Context(), "\xff"), leasehold.ErrInvalidOption)
	_, err := locks.TryAcquire(t.Context(), "a")
	if busy, ok := errors.AsType[*leasehold.BusyError](err); !ok || busy.Holder.Details().Text != "half done" || busy.Holder.Details().Host != "web-7" {
		t.Errorf("a refusal inside the process: %v", err)
	}
}

// A lease that nobody renews is not one whose renewals have stopped.
func TestLeasesWithoutRenewalSaySo(t *testing.T) {
	for name, c := range map[string]struct {
		opts []leasehold.Option
		kind string
	}{
		"renewed":  {nil, ""},
		"NoRenew":  {[]leasehold.Option{leasehold.NoRenew()}, leasehold.HolderManual},
		"OncePer":  {[]leasehold.Option{leasehold.OncePer(time.Hour), leasehold.Note("x")}, leasehold.HolderManual},
		"reserved": {[]leasehold.Option{leasehold.NoRenew(), leasehold.WithDetails(leasehold.Details{Kind: leasehold.HolderReserved})}, leasehold.HolderReserved},
	} {
		t.Run(name, func(t *testing.T) {
			locks := newLocker(t, memory.New(), nil)
			acquire(t, locks, "a", c.opts...)
			if d := held(t, locks).Details(); d.Kind != c.kind || d.PID != os.Getpid() {
				t.Errorf("%+v", d)
			}
		})
	}
}

func TestBadDetailsAreRefused(t *testing.T) {
	mine := newFaulty(t, memory.NewServer())
	locks := newLocker(t, mine, nil)
	for name, d := range map[string]leasehold.Details{
		"link":    {Link: "javascript:alert(1)"},
		"host":    {Host: "\xff"},
		"label":   {Labels: map[string]string{"": "x"}},
		"pid":     {PID: -1},
		"started": {Started: time.Unix(-1, 0)},
		"length":  {Labels: map[string]string{"x": strings.Repeat("x", driver.MaxNote)}},
		"text":    {Text: "a\x00b"},
	} {
		_, err := locks.Acquire(t.Context(), "a", leasehold.WithDetails(d))
		wantErr(t, err, leasehold.ErrInvalidOption)
		if _, err = leasehold.New(memory.New(), &leasehold.Options{Details: d}); !errors.Is(err, leasehold.ErrInvalidOption) {
			t.Errorf("%s: New returns %v", name, err)
		}
	}
	_, err := leasehold.New(memory.New(), &leasehold.Options{Note: "a", Details: leasehold.Details{Text: "b"}})
	wantErr(t, err, leasehold.ErrInvalidOption)
}

// A note of full length leaves no room for what is filled in.
func TestLongNotesStay(t *testing.T) {
	locks := newLocker(t, memory.New(), nil)
	long := strings.Repeat("x", driver.MaxNote)
	lease := acquire(t, locks, "a", leasehold.Note(long))
	if h := held(t, locks); h.Note != long || h.Details().Host != "" {
		t.Errorf("the note has %d bytes", len(h.Note))
	}
	if err := lease.SetNote(t.Context(), "short"); err != nil || held(t, locks).Details().PID != os.Getpid() {
		t.Errorf("%v, %+v", err, held(t, locks).Details())
	}
}

// What others wrote is text, and a text that looks like details comes back as it was.
func TestForeignNotesAreText(t *testing.T) {
	server := memory.NewServer()
	d := server.Connect()
	claim := claimtest.New(t, d, driver.Request{Resource: "a", Owner: "foreign", TTL: time.Minute, Note: "web-7 cron[12]"})
	claimtest.Granted(t, claim)
	locks := newLocker(t, server.Connect(), nil)
	if h := held(t, locks); h.Note != "web-7 cron[12]" || h.Details().Text != h.Note || h.Details().Host != "" {
		t.Errorf("%+v", h.Details())
	}
	claimtest.Released(t, claim)
	const text = "x \u2063h=not my host"
	acquire(t, locks, "a", leasehold.Note(text))
	if h := held(t, locks); h.Note != text || h.Details().Host == "not my host" {
		t.Errorf("%+v", h.Details())
	}
	if d := (leasehold.Holder{Note: "built by hand"}).Details(); d.Text != "built by hand" {
		t.Errorf("%+v", d)
	}
}

func TestWaitersTellDetails(t *testing.T) {
	server := memory.NewServer()
	acquire(t, newLocker(t, server.Connect(), nil), "a")
	other := newLocker(t, server.Connect(), &leasehold.Options{Details: leasehold.Details{Host: "web-8", Text: "patient"}})
	waits := make(chan error, 1)
	go func() {
		_, err := other.Acquire(t.Context(), "a", leasehold.Wait(3*time.Second))
		waits <- err
	}()
	locks := newLocker(t, server.Connect(), nil)
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(time.Millisecond) {
		state, err := locks.Inspect(t.Context(), "a")
		if err != nil || time.Now().After(end) {
			t.Fatalf("%+v, %v", state, err)
		}
		if len(state.Waiters) == 1 {
			if d := state.Waiters[0].Details(); d.Host != "web-8" || d.Text != "patient" || state.Waiters[0].Note != "patient" {
				t.Errorf("%+v", d)
			}
			break
		}
	}
}

// A refusal tells the text, and the host where the text does not.
func TestBusyErrorTellsWhoAndWhere(t *testing.T) {
	for _, c := range []struct{ note, tells string }{
		{"nightly backup \u2063h=web-7;p=12;g=backup", `"a" is busy: held by nightly backup on web-7`},
		{"web-7 backup[12] \u2063h=web-7;p=12;g=backup", `"a" is busy: held by web-7 backup[12]`},
		{"web-7 backup[12]", `"a" is busy: held by web-7 backup[12]`},
		{"nightly\x1b[2J \u2063h=web%1B-7", `"a" is busy: held by nightly[2J on web-7`},
		{"", `"a" is busy`},
	} {
		server := memory.NewServer()
		claim := claimtest.New(t, server.Connect(), driver.Request{Resource: "a", Owner: "foreign", TTL: time.Minute, Note: c.note})
		claimtest.Granted(t, claim)
		_, err := newLocker(t, server.Connect(), nil).TryAcquire(t.Context(), "a")
		busy, ok := errors.AsType[*leasehold.BusyError](err)
		if !ok {
			t.Fatal(err)
		}
		if text, _, _ := strings.Cut(busy.Error(), " for "); text != c.tells {
			t.Errorf("%q, want %q", text, c.tells)
		}
	}
}
