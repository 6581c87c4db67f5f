//go:build linux

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
	"github.com/leasehold-go/leasehold/stores"
)

// On a terminal nobody evaluates: there acquire speaks to a person.
func TestAcquireOnATerminal(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := c.screen(binary, "acquire", "--ttl", "1h", "deploy")
	if code := s.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	contains(t, s.shows(), "export LEASEHOLD_OWNER='", "deploy is held for", "leasehold help acquire")
	s = c.screen(binary, "acquire", "-n", "deploy")
	if code := s.end(); code != 1 || strings.Contains(s.shows(), "(exit") {
		t.Errorf("exit code %d:\n%s", code, s.shows())
	}
}

// Who sits at a terminal learns whom the default store excludes.
func TestDefaultStoreIsNamedOnATerminal(t *testing.T) {
	t.Parallel()
	const says = "only your own processes on this machine"
	c := newCLI(t)
	for _, args := range [][]string{{"run", "x", "--", "true"}, {"acquire", "x"}} {
		s := c.screen("sh", append([]string{"-c", `unset LEASEHOLD_STORE XDG_STATE_HOME XDG_CONFIG_HOME; exec leasehold "$@"`, "sh"}, args...)...)
		if code := s.end(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		contains(t, s.shows(), says)
	}
	s := c.screen(binary, "--store", "sqlite:", "run", "y", "--", "true")
	if s.end(); strings.Contains(s.shows(), says) {
		t.Errorf("says so of a store that is named: %s", s.shows())
	}
}

// One leaves top as one leaves other programs of its kind, and finds the terminal as it was.
func TestTopLeavesAtAKey(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"q": "q", "Ctrl-C": ctrlC} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.acquire("job")
			s := c.screen("sh", "-c", "stty rows 24 cols 120; stty -a > before; leasehold top; echo code $?; stty -a > after")
			s.waitFor("q quit")
			s.typed(key)
			s.waitFor("code 0")
			if s.end() != 0 || !strings.HasSuffix(strings.Split(s.shows(), "code 0")[0], screenLeave) {
				t.Errorf("it leaves the screen as %q", s.shows())
			}
			if before, after := c.read("before"), c.read("after"); before != after {
				t.Errorf("it leaves the terminal as\n%s\nit was\n%s", after, before)
			}
		})
	}
}

// A signal ends top as it ends other commands, and the terminal is as it was.
func TestTopEndsByASignal(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("job")
	s := c.screen("sh", "-c", "stty rows 24 cols 120; exec leasehold top")
	s.waitFor("q quit")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.end(); code != exitSignal+int(syscall.SIGTERM) || !strings.Contains(s.shows(), screenLeave) {
		t.Errorf("exit code %d: %q", code, s.shows())
	}
}

// What doctor finds fits the terminal: words are not cut, and the columns stay columns.
func TestDoctorFitsTheTerminal(t *testing.T) {
	t.Parallel()
	for _, width := range []int{80, 120} {
		t.Run(strconv.Itoa(width), func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.acquire("job")
			whole := strings.Fields(c.call("doctor").stdout)
			s := c.screen("sh", "-c", fmt.Sprintf("stty cols %d; leasehold doctor; leasehold --store sqlite:no/such/folder/%s.db doctor", width, strings.Repeat("long", 10)))
			s.end()
			shows := strings.ReplaceAll(s.shows(), "\r\n", "\n")
			for line := range strings.Lines(shows) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width && !strings.Contains(line, "longlong") {
					t.Errorf("%d characters: %q", n, line)
				}
			}
			for _, word := range whole {
				if !strings.Contains(shows, word) && !strings.ContainsAny(word, "0123456789") { // of times
					t.Errorf("no %q in:\n%s", word, shows)
				}
			}
			t.Log("\n" + shows)
		})
	}
}

// top is used by its keys: to sort, to look at a lock, and to evict, which takes a reason and the name.
func TestTopIsUsedByKeys(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.acquire("--ttl", "1h", "--link", "https://a.example/17", "deploy")
	lease := c.acquire("--ttl", "1h", "job")
	for _, size := range []string{"rows 24 cols 80", "rows 20 cols 60"} {
		s := c.screen("sh", "-c", "stty "+size+"; leasehold top; echo code $?")
		s.waitFor("q quit")
		s.waitFor("deploy")
		s.typed("s")
		s.waitFor("by name")
		s.typed("\r")
		s.waitFor("https://a.example/17")
		s.typed("\x1b")
		s.waitFor("Enter show")
		s.typed("?")
		s.waitFor("any key goes back")
		s.typed("x/jo")
		s.waitFor("lines with: jo")
		s.typed("\r")
		s.waitFor(`only lines with "jo"`)
		s.typed("e")
		s.waitFor("reason: ")
		s.typed("hangs\r")
		s.waitFor("type the name to evict: ")
		s.typed("no\r")
		s.waitFor("nobody was evicted")
		s.typed("q")
		s.waitFor("code 0")
		s.end()
	}
	c.want(0, "renew", "job", lease.Owner)
	s := c.screen("sh", "-c", "stty rows 40 cols 120; leasehold top; echo code $?")
	s.waitFor("deploy")
	s.typed("\x1b[Be")
	s.waitFor("Evict " + lease.Owner[:8] + " (")
	s.typed("hangs\rjob\r")
	s.waitFor("evicted " + lease.Owner[:8] + " from job")
	s.typed(ctrlC)
	s.waitFor("code 0")
	s.end()
	contains(t, c.call("renew", "job", lease.Owner).stderr, "evicted: hangs")
	if strings.Contains(s.shows(), lease.Owner) {
		t.Error("top shows an owner whole")
	}
}

// While the user thinks, the holder may release and acquire again: that lease is spared.
func TestEvictSparesALaterLease(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	d, err := stores.Open(t.Context(), c.store)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	claim := claimtest.New(t, d, driver.Request{Resource: "job", Owner: "of its own choice", TTL: time.Hour})
	claimtest.Granted(t, claim)
	s := c.screen(binary, "evict", "job", "--owner", "of its o", "--reason", "hangs")
	s.waitFor("[y/N]")
	claimtest.Released(t, claim)
	claimtest.Granted(t, claim)
	s.typed("y\r")
	if code := s.end(); code != exitLost {
		t.Errorf("exit code %d", code)
	}
	contains(t, s.shows(), "another lease", "leasehold show job")
	claimtest.Released(t, claim)
}

// An eviction that was confirmed has an outcome for the user, even if that comes after q.
func TestTopTellsTheOutcomeOfAnEvictionAfterItsEnd(t *testing.T) {
	t.Parallel()
	served, err := serve.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	asked, left := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "evict") {
			close(asked)
			<-left
		}
		served.ServeHTTP(w, r)
	}))
	defer s.Close()
	c := newCLI(t)
	c.store = s.URL
	lease := c.acquire("--ttl", "1h", "job")
	screen := c.screen("sh", "-c", "stty rows 24 cols 120; leasehold top; echo code $?")
	screen.waitFor("job")
	screen.typed("e")
	screen.waitFor("reason: ")
	screen.typed("hangs\rjob\rq")
	select {
	case <-asked:
	case <-time.After(patience):
		t.Fatal(screen.shows())
	}
	screen.waitFor(screenLeave)
	close(left)
	screen.waitFor("code 0")
	screen.end()
	_, after, _ := strings.Cut(screen.shows(), screenLeave)
	contains(t, after, "evicted "+lease.Owner[:8]+" from job")
}

// A store that hangs holds up neither the keys of top nor its end, and what it shows says so.
func TestTopOfAHangingStore(t *testing.T) {
	t.Parallel()
	served, err := serve.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	left := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/locks" {
			served.ServeHTTP(w, r)
			return
		}
		select { // it does not answer
		case <-r.Context().Done():
		case <-left:
		}
	}))
	defer s.Close()
	defer close(left)
	c := newCLI(t)
	c.store = s.URL
	screen := c.screen("sh", "-c", "stty rows 24 cols 80; leasehold top; echo code $?")
	screen.waitFor("has not answered for")
	screen.typed("?")
	screen.waitFor("any key goes back")
	began := time.Now()
	screen.typed("q")
	screen.waitFor("code 0")
	if took := time.Since(began); took > answerBound/2 {
		t.Errorf("q took %v", took)
	}
	screen.end()
}
