// Package page looks at the page of "leasehold serve" in a real Chromium, as a person does.
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

	"github.com/leasehold-go/leasehold/internal/servers"
)

// pictures writes docs/images: go test ./page -pictures
var pictures = flag.Bool("pictures", false, "write what is seen to docs/images")

const minute = time.Minute

func TestALeaseIsTakenWaitedForAndLost(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	p := open(t, s.url)
	p.reads("#status", "live")
	p.reads("#none", "Nothing is held")
	s.hold("nightly/report", "one", "worker-1, pid 4711", 30*time.Second)
	p.reads(".row", "worker-1, pid 4711")
	p.reads(".row", "left")
	p.picture("page-held")
	second := make(chan int, 1)
	go func() {
		for status := http.StatusConflict; ; { // until its turn comes
			if status, _ = s.try("acquire", map[string]any{"name": "nightly/report", "owner": "two", "note": "worker-2", "ttl_ms": 5000, "wait_ms": 30_000}); status != http.StatusConflict {
				second <- status
				return
			}
		}
	}()
	p.reads(".row", "1 waiting")
	p.reads("#contended", "nightly/report")
	p.click(".row")
	p.reads("#lock-name", "nightly/report")
	p.reads("#lock-state", "held")
	p.reads("#waiters", "worker-2")
	p.reads("#holders", "renewals stopped") // before it is lost
	if status := <-second; status != http.StatusOK {
		t.Fatalf("the second: %d", status)
	}
	p.reads("#history", "ended")
	p.reads("#lock-state", "free") // the second is not renewed either
	p.click("#lock p a")
	p.reads("#ends", "nightly/report")
}

func TestARenewedLeaseIsNotCalledSilent(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("renewed", "one", "r", 20*time.Second)
	p := open(t, s.url)
	p.reads(".row", "left")
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		if status := s.post("renew", map[string]any{"name": "renewed", "owner": "one", "ttl_ms": 20_000}); status != 200 {
			t.Fatalf("renew: %d", status)
		}
	}
	if text := p.text(".row"); !strings.Contains(text, "left") {
		t.Errorf("it reads %q", text)
	}
}

func TestAHolderIsEvicted(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("deploy", "one", "ci run 17", minute)
	p := open(t, s.url+"/#/lock/deploy")
	p.click("#holders button")
	p.write("#evict-reason", "maintenance")
	if !eval[bool](p, `document.getElementById('evict-yes').disabled`) {
		t.Error("it can be evicted before its name is typed")
	}
	p.write("#evict-typed", "deploy")
	p.picture("page-evict")
	p.click("#evict-yes")
	p.reads("#lock-state", "free")
	p.reads("#history", "evicted")
	p.reads("#history", "maintenance")
	if status := s.post("renew", map[string]any{"name": "deploy", "owner": "one", "ttl_ms": 1000}); status != http.StatusGone {
		t.Errorf("its renewal: %d, want 410", status)
	}
	p.until("the dialog has gone", func() bool { return !eval[bool](p, `document.getElementById('evict').open`) }, "#evict")
}

// Whoever may look and not evict is told so.
func TestATokenIsAskedFor(t *testing.T) {
	t.Parallel()
	const token = "a-token-that-is-long-and-random-enough"
	access := filepath.Join(t.TempDir(), "access.json")
	text := fmt.Sprintf(`{"clients":[{"name":"looks","tokens":["%x"],"rules":[{"prefix":"","rights":["view","lock"]}]}]}`, sha256.Sum256([]byte(token)))
	if err := os.WriteFile(access, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "memory:", "127.0.0.1:0", "--access", access)
	p := open(t, s.url)
	p.reads("#status", "a token is needed")
	s.token = token
	s.hold("deploy", "one", "ci", 10*minute)
	p.write("#bearer", token)
	p.click("#sign-in button")
	p.reads(".row", "ci")
	p.click(".row")
	p.click("#holders button")
	p.write("#evict-reason", "maintenance")
	p.write("#evict-typed", "deploy")
	p.click("#evict-yes")
	p.reads("#evict-answer", "not allowed")
	p.reads("#lock-state", "held")
}

// What nobody answers for is unknown, not free.
func TestTheServiceGoesAwayAndComesBack(t *testing.T) {
	t.Parallel()
	store := "redis://" + servers.StartRedis(t).Addr() + "/0"
	s := serve(t, store, "127.0.0.1:0")
	s.hold("a", "one", "", 10*minute)
	list, lock := open(t, s.url), open(t, s.url+"/#/lock/b")
	list.reads(".row", "left")
	lock.reads("#lock-state", "free")
	s.kill()
	list.reads("#status", "UNKNOWN")
	list.reads(".row", "unknown")
	lock.reads("#lock-state", "unknown")
	list.picture("page-unknown")
	s = serve(t, store, s.address())
	list.reads("#status", "live")
	list.reads(".row", "left")
	lock.reads("#lock-state", "free")
	s.post("acquire", map[string]any{"name": "b", "owner": "two", "ttl_ms": 600_000})
	lock.reads("#lock-state", "held")
}

// What is held is called so also where the list has been told to leave it out, and what one may not
// view is not called free.
func TestALockThatIsNotInTheListIsNotCalledFree(t *testing.T) {
	t.Parallel()
	const token = "a-token-that-is-long-and-random-enough"
	access := filepath.Join(t.TempDir(), "access.json")
	text := fmt.Sprintf(`{"clients":[{"name":"looks","tokens":["%x"],"rules":[{"prefix":"","rights":["lock"]},{"prefix":"mine/","rights":["view"]}]}]}`, sha256.Sum256([]byte(token)))
	if err := os.WriteFile(access, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "memory:", "127.0.0.1:0", "--access", access)
	s.token = token
	s.hold("mine/1", "one", "ci", 10*minute)
	s.hold("others/1", "two", "secret", 10*minute)
	p := open(t, s.url)
	p.write("#bearer", token)
	p.click("#sign-in button")
	p.reads(".row", "ci")
	p.write("#prefix", "mine/2")
	p.reads("#none", "Nothing is held")
	goTo := func(name string) {
		eval[string](p, fmt.Sprintf(`location.hash = '#/lock/' + encodeURIComponent(%q)`, name))
		p.reads("#lock-name", name)
	}
	goTo("mine/1")
	p.reads("#lock-state", "held")
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // over some answers
		if text := p.text("#lock-state"); text != "held" {
			t.Fatalf("what is held reads %q", text)
		}
	}
	goTo("others/1")
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if text := p.text("#lock-state"); text != "unknown" {
			t.Fatalf("what one may not view reads %q", text)
		}
	}
	goTo("mine/3")
	p.reads("#lock-state", "free")
}

func TestTheStoreGoesAway(t *testing.T) {
	t.Parallel()
	redis := servers.StartRedis(t)
	s := serve(t, "redis://"+redis.Addr()+"/0", "127.0.0.1:0")
	p := open(t, s.url+"/#/lock/a")
	p.reads("#lock-state", "free")
	redis.Kill()
	p.reads("#lock-state", "unknown")
}
