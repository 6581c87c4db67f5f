package serve

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// An error that a driver may return without asking the store says nothing about it.
func TestErrorsWithoutTheStoreAreNoAnswers(t *testing.T) {
	t.Parallel()
	for err, answers := range map[error]bool{
		driver.ErrBusy: false, driver.ErrNotYet: false, driver.ErrLost: false, driver.ErrBarred: false, driver.ErrUnsupported: false,
		driver.ErrInvalidName: false, driver.ErrTooHeavy: false,
		driver.ErrCorrupt: true, driver.ErrDenied: true, driver.ErrReadOnly: true, driver.ErrFull: true,
	} {
		for _, wasUp := range []bool{false, true} {
			var m metrics
			m.init()
			w := &watched{calls: &m.storeCalls, seconds: &m.storeSeconds}
			if before := time.Now().Add(-time.Second); wasUp {
				w.answered = before
			} else {
				w.silent = before
			}
			err := fmt.Errorf("test: %w", err)
			w.begin(t.Context(), "try")(&err)
			if up, _ := w.up(time.Now()); up != (wasUp || answers) {
				t.Errorf("after %v, the store is up: %t; it was: %t", err, up, wasUp)
			}
		}
	}
}

// Each error of the contract with drivers is an answer of the store, unless it says that there is
// none.
func TestErrorsOfDriversAreAnswers(t *testing.T) {
	t.Parallel()
	outcomes := map[string]struct {
		err  error
		want string
	}{
		"ErrBusy":        {driver.ErrBusy, wire.Busy},
		"ErrNotYet":      {driver.ErrNotYet, wire.Busy},
		"ErrLost":        {driver.ErrLost, wire.Lost},
		"ErrBarred":      {driver.ErrBarred, wire.Lost},
		"ErrEvicted":     {driver.Evicted("test"), wire.Lost},
		"ErrUnsupported": {driver.ErrUnsupported, wire.Refused},
		"ErrInvalidName": {driver.ErrInvalidName, wire.Refused},
		"ErrCorrupt":     {driver.ErrCorrupt, wire.Refused},
		"ErrDenied":      {driver.ErrDenied, wire.Refused},
		"ErrTooHeavy":    {driver.ErrTooHeavy, wire.Refused},
		"ErrReadOnly":    {driver.ErrReadOnly, storeFull},
		"ErrFull":        {driver.ErrFull, storeFull},
		"ErrClosed":      {driver.ErrClosed, wire.Unknown},
		"ErrURL":         {driver.ErrURL, wire.Unknown}, // no claim returns it
	}
	for name, o := range outcomes {
		if got := outcomeOf(fmt.Errorf("test: %w", o.err)); got != o.want {
			t.Errorf("%s counts as %s, want %s", name, got, o.want)
		}
	}
	if got := outcomeOf(errors.New("connection refused")); got != wire.Unknown {
		t.Errorf("any other error counts as %s", got)
	}
	file, err := parser.ParseFile(gotoken.NewFileSet(), "../driver/driver.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		vars, ok := d.(*ast.GenDecl)
		if !ok || vars.Tok != gotoken.VAR {
			continue
		}
		for _, spec := range vars.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if _, there := outcomes[name.Name]; strings.HasPrefix(name.Name, "Err") && !there {
					t.Errorf("nothing says what %s counts as", name.Name)
				}
			}
		}
	}
}
