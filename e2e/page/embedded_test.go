package page

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/memory"
	web "github.com/leasehold-go/leasehold/serve"
)

// The console in another program, beneath a path of that.
func TestTheConsoleInAnotherProgram(t *testing.T) {
	t.Parallel()
	d := memory.New()
	service, err := web.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/locks/", http.StripPrefix("/debug/locks", service))
	other := httptest.NewServer(mux)
	t.Cleanup(func() { service.Drain(); other.Close(); service.Close(); d.Close() })
	locks, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	p := open(t, other.URL+"/debug/locks/#/locks")
	p.reads("#status", "live")
	lease, err := locks.Acquire(t.Context(), "of the program", leasehold.Note("its own"))
	if err != nil {
		t.Fatal(err)
	}
	p.reads(".row", "its own")
	p.click(".row a")
	p.reads("#lock-state", "held")
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	p.reads("#lock-state", "free")
}

// A row keeps its focus while answers come, and is clicked where it stands.
func TestARowKeepsItsFocus(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("deploy", "one", "ci run 17", minute)
	p := open(t, s.url+"/#/locks")
	p.reads(".row", "ci run 17")
	eval[bool](p, `document.querySelector('.row a').focus(), true`)
	s.hold("apply", "two", "ci run 18", minute)
	p.reads(".row", "ci run 18") // before it
	if name := eval[string](p, `document.activeElement.textContent`); name != "deploy" {
		t.Errorf("the focus is on %q", name)
	}
}
