// Package page looks at the console of "leasehold serve" in a real Chromium, as a person does.
package page

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// pictures writes docs/images: go test ./page -pictures
var pictures = flag.Bool("pictures", false, "write what is seen to docs/images")

const minute = time.Minute

// A lease that was renewed, and is not any more, is called at risk before it is lost.
func TestALeaseIsTakenWaitedForAndLost(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	p := open(t, s.url+"/#/locks")
	p.reads("#status", "live")
	p.reads(".empty", "Nothing is held")
	s.hold("nightly/report", "one", "worker-1, pid 4711", 30*time.Second)
	p.reads(".row", "worker-1, pid 4711")
	p.reads(".row", "left")
	second := make(chan int, 1)
	go func() {
		for status := http.StatusConflict; ; { // until its turn comes
			if status, _ = s.try("acquire", map[string]any{"name": "nightly/report", "owner": "two", "note": "worker-2", "ttl_ms": 5000, "wait_ms": 30_000}); status != http.StatusConflict {
				second <- status
				return
			}
		}
	}()
	p.reads(".row .c-waiting", "1")
	time.Sleep(time.Second) // so that it is a renewal, and not the grant once more
	s.renew("nightly/report", "one", 20*time.Second)
	p.click(".row a")
	p.reads("#lock-name", "nightly/report")
	p.reads("#lock-state", "held")
	p.reads("#waiters", "worker-2")
	p.reads(".sum", "1 waiting")
	p.reads("#holders", "no renewal for") // before it is lost
	p.reads("#lock-state", "at risk")
	if status := <-second; status != http.StatusOK {
		t.Fatalf("the second: %d", status)
	}
	p.reads("#history", "lost by worker-1")
	p.reads("#lock-state", "free") // the second is not renewed either
	p.click(".crumbs a")
	p.reads(".empty", "Nothing is held")
}

func TestARenewedLeaseIsNotCalledSilent(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("renewed", "one", "r", 20*time.Second)
	p := open(t, s.url+"/#/locks")
	p.reads(".row", "left")
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		s.renew("renewed", "one", 20*time.Second)
		if text := p.text(".row"); strings.Contains(text, "renewal") || strings.Contains(text, "risk") {
			t.Fatalf("it reads %q", text)
		}
	}
}

func TestAHolderIsEvicted(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("deploy", "one", "ci run 17", minute)
	p := open(t, s.url+"/#/lock/deploy")
	p.click("#holders .evict")
	p.reads("dialog .facts", "Nobody renews this lease")
	p.write("dialog [name=reason]", "maintenance")
	if !eval[bool](p, `document.querySelector('dialog .yes').disabled`) {
		t.Error("it can be evicted before its name is typed")
	}
	p.write("dialog [name=typed]", "deploy")
	p.picture("console-evict")
	p.click("dialog .yes")
	p.reads("#lock-state", "free")
	p.reads("#history", "evicted")
	p.reads("#history", "maintenance")
	if status := s.post("renew", map[string]any{"name": "deploy", "owner": "one", "ttl_ms": 1000}); status != http.StatusGone {
		t.Errorf("its renewal: %d, want 410", status)
	}
	p.until("the dialog has gone", func() bool { return !eval[bool](p, `Boolean(document.querySelector('dialog'))`) }, "dialog")
}

// Enter does what the focused button says, and in a field what the dialog is for, once it is allowed.
func TestEnterInTheDialogDoesWhatItSays(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("e/1", "one", "hung", 10*minute)
	p := open(t, s.url+"/#/lock/e%2F1")
	isOpen := func() bool { return eval[bool](p, `Boolean(document.querySelector('dialog[open]'))`) }
	p.click("#holders .evict")
	p.write("dialog [name=reason]", "gone")
	p.do(chromedp.KeyEvent(kb.Enter)) // the name is not typed yet
	if !isOpen() || p.text("dialog .answer") != "" {
		t.Error("Enter in a dialog that is not filled in closed it, or did something")
	}
	p.write("dialog [name=typed]", "e/1")
	eval[bool](p, `document.querySelector('dialog .no').focus(), true`)
	p.do(chromedp.KeyEvent(kb.Enter))
	p.until("Cancel cancels", func() bool { return !isOpen() }, "dialog")
	if status := s.post("renew", map[string]any{"name": "e/1", "owner": "one", "ttl_ms": 600_000}); status != http.StatusOK {
		t.Errorf("Enter on Cancel has evicted: %d", status)
	}
	p.click("#holders .evict")
	p.write("dialog [name=reason]", "gone")
	p.write("dialog [name=typed]", "e/1")
	p.do(chromedp.KeyEvent(kb.Enter))
	p.reads("#lock-state", "free")
	p.reads("#history", "gone")
}

// What is under way cannot be cancelled, so the dialog stays until the outcome is known.
func TestADialogStaysUntilTheOutcomeIsKnown(t *testing.T) {
	t.Parallel()
	answers := make(chan struct{})
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if r.URL.Path == "/v1/evict" {
			select {
			case <-answers:
			case <-r.Context().Done():
			}
			w.WriteHeader(http.StatusGone)
			return
		}
		service.ServeHTTP(w, r)
	})
	s.hold("e", "one", "hung", 10*minute)
	p := open(t, s.url+"/#/lock/e")
	p.click("#holders .evict")
	p.write("dialog [name=reason]", "gone")
	p.write("dialog [name=typed]", "e")
	p.click("dialog .yes")
	p.until("Cancel is disabled", func() bool { return eval[bool](p, `document.querySelector('dialog .no')?.disabled`) }, "dialog")
	for range 3 { // Chromium lets no page refuse Escape twice in a row
		p.do(chromedp.KeyEvent(kb.Escape))
	}
	answers <- struct{}{}
	p.reads("dialog[open] .answer", "It had already ended")
	p.click("dialog .yes")
	p.until("Cancel is disabled again", func() bool { return eval[bool](p, `document.querySelector('dialog .no')?.disabled`) }, "dialog")
	// The outcome comes after Escape has closed the dialog, and before the page hears of that.
	eval[bool](p, `(addEventListener('close', (e) => e.stopImmediatePropagation(), { capture: true, once: true }), document.querySelector('dialog').close(), true)`)
	answers <- struct{}{}
	p.reads("dialog[open] .answer", "It had already ended")
	p.click("dialog .no")
	p.until("it closes", func() bool { return !eval[bool](p, `Boolean(document.querySelector('dialog'))`) }, "dialog")
}

// Whoever may look and not evict is told so, and a wrong token is told from none.
func TestATokenIsAskedFor(t *testing.T) {
	t.Parallel()
	s := guarded(t, `[{"prefix":"","rights":["view","lock"]}]`)
	p := open(t, s.url+"/#/locks")
	p.reads("#status", "sign-in needed")
	p.reads("#sign-in", "asks for an access token")
	p.write("#bearer", "of somebody else")
	p.click("#sign-in .main")
	p.reads("#sign-in", "not known here")
	p.reads("#status", "wrong token")
	s.hold("deploy", "one", "ci", 10*minute)
	p.do(chromedp.SetValue(chromedp.CSS("#bearer"), s.token))
	p.click("#sign-in .main")
	p.reads(".row", "ci")
	p.reads("#status", "live")
	p.click(".row a")
	p.reads("#lock-state", "held")
	p.reads("#may-not", "no right to evict")
	if eval[bool](p, `Boolean(document.querySelector('.evict'))`) {
		t.Error("it can be tried")
	}
	p.click("#me")
	p.click("#sign-out")
	p.reads("#sign-in", "asks for an access token")
	if kept := eval[int](p, `sessionStorage.length`); kept != 0 {
		t.Errorf("%d things are kept after the sign-out", kept)
	}
}

// What is held is called so also where the list has been told to leave it out, and what one may not
// view is not called free.
func TestALockThatIsNotInTheListIsNotCalledFree(t *testing.T) {
	t.Parallel()
	s := guarded(t, `[{"prefix":"","rights":["lock"]},{"prefix":"mine/","rights":["view"]}]`)
	s.hold("mine/1", "one", "ci", 10*minute)
	s.hold("others/1", "two", "secret", 10*minute)
	p := open(t, s.url+"/#/locks")
	p.write("#bearer", s.token)
	p.click("#sign-in .main")
	p.reads(".row", "ci")
	p.write("#prefix", "mine/2")
	p.reads(".empty", "Nothing is held")
	goTo := func(name string) {
		eval[string](p, fmt.Sprintf(`location.hash = '#/lock/' + encodeURIComponent(%q)`, name))
		p.reads("#lock-name", name)
	}
	goTo("mine/1")
	p.reads("#lock-state", "held")
	p.stays("#lock-state", "held") // over some answers
	goTo("others/1")
	p.reads("#status", "not allowed")
	p.stays("#lock-state", "unknown")
	goTo("mine/3")
	p.reads("#lock-state", "free")
}

// What is kept for nobody is neither held nor free, and a shared lock says how many share it.
func TestWhatIsKeptAndWhatIsSharedSaySo(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("cron/daily", "one", "report of Friday", minute)
	if status := s.post("release", map[string]any{"name": "cron/daily", "owner": "one", "linger_ms": 3_600_000}); status != 200 {
		t.Fatalf("release: %d", status)
	}
	for _, owner := range []string{"a", "b", "c"} {
		s.post("acquire", map[string]any{"name": "readers", "owner": owner, "mode": "shared", "limit": 4, "ttl_ms": 600_000, "note": "reader " + owner})
	}
	p := open(t, s.url+"/#/locks")
	p.reads(".row", "done, not free until")
	p.reads(".row .c-state", "done")
	p.reads(".row:nth-child(2) .c-mode", "3 of 4")
	p.click(".row:nth-child(2) a")
	for _, reader := range []string{"reader a", "reader b", "reader c"} {
		p.reads("#holders", reader)
	}
	eval[string](p, `location.hash = '#/lock/cron%2Fdaily'`)
	p.reads("#lock-state", "done")
	p.reads(".sum", "Nobody holds it: done, not free until")
}

// guarded is a service with an access file of one client, who has the rules.
func guarded(t *testing.T, rules string) *service {
	t.Helper()
	const token = "a-token-that-is-long-and-random-enough"
	access := filepath.Join(t.TempDir(), "access.json")
	text := fmt.Sprintf(`{"clients":[{"name":"looks","tokens":["%x"],"rules":%s}]}`, sha256.Sum256([]byte(token)), rules)
	if err := os.WriteFile(access, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "memory:", "127.0.0.1:0", "--access", access)
	s.token = token
	return s
}
