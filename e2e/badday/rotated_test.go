package badday

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/stores"
)

const (
	// within is how long anything may take on a busy machine.
	within = 2 * time.Minute
	// heldFor outlasts the restart of a server, which some need to take other certificates.
	heldFor = time.Minute
	// ledFor is short, so that a leader is lost that cannot renew.
	ledFor = 4 * time.Second
)

// A rotation is an engine with secrets of one kind, in files.
type rotation struct {
	engine, kind string                        // row and column of the page's table
	addr         string                        // of the server
	url          func(addr, dir string) string // of a store at addr, with its files in dir
	files        func(n int) map[string][]byte // the client's, of the nth generation
	serve        func(n int)                   // has the server take the nth generation and no other
	refusals     func() int                    // logins that it has refused so far; nil: it does not count them
	halves       bool                          // half a file can be told from a whole one
	lasts        bool                          // a lease needs no secret to be renewed
}

// A mount is a folder of secrets, as Kubernetes mounts it: each file is a link into a folder that is a link, which
// is replaced.
type mount struct {
	t   *testing.T
	dir string
	n   int
}

// swap replaces all files at once.
func (m *mount) swap(files map[string][]byte) {
	m.t.Helper()
	m.n++
	data := fmt.Sprint("..", m.n)
	err := os.Mkdir(filepath.Join(m.dir, data), 0o700)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(m.dir, data, name), text, 0o600))
		if m.n == 1 {
			err = errors.Join(err, os.Symlink(filepath.Join("..data", name), filepath.Join(m.dir, name)))
		}
	}
	next := filepath.Join(m.dir, "..next")
	if err := errors.Join(err, os.Symlink(data, next), os.Rename(next, filepath.Join(m.dir, "..data"))); err != nil {
		m.t.Fatal(err)
	}
}

// edit writes to a file as editors do that truncate it first.
func (m *mount) edit(name string, text []byte) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), text, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// A leader notes its terms.
type leader struct {
	mu   sync.Mutex
	last *leasehold.Lease // guarded by mu
}

func (l *leader) lead(ctx context.Context) error {
	lease, _ := leasehold.FromContext(ctx)
	l.mu.Lock()
	l.last = lease
	l.mu.Unlock()
	<-ctx.Done()
	return nil
}

// term is the lease of the present or last term.
func (l *leader) term() (*leasehold.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		return nil, errors.New("it never led")
	}
	return l.last, l.last.Context().Err()
}

// leads returns nil if the engine agrees that it leads.
func (l *leader) leads(ctx context.Context) error {
	lease, err := l.term()
	if err != nil {
		return err
	}
	return lease.Extend(ctx, ledFor)
}

// A process has opened its store once.
type process struct {
	t      *testing.T
	r      rotation
	proxy  *servers.Proxy
	mount  *mount
	long   *leasehold.Locker
	held   *leasehold.Lease
	leader leader
	number int
}

func start(t *testing.T, r rotation) *process {
	p := &process{t: t, r: r, proxy: servers.StartProxy(t, r.addr), mount: &mount{t: t, dir: t.TempDir()}}
	p.mount.swap(r.files(0))
	d := p.open(p.proxy.Addr(), p.mount.dir)
	short := p.locker(d, ledFor)
	p.long = p.locker(d, heldFor)
	p.eventually("hold", func(ctx context.Context) (err error) {
		p.number++
		p.held, err = p.long.Acquire(ctx, fmt.Sprint("held/", p.number))
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	var leading sync.WaitGroup
	leading.Go(func() {
		for ctx.Err() == nil { // a first campaign may fail on a busy machine, which ends Lead
			err := short.Lead(ctx, "led", p.leader.lead)
			if lease, _ := p.leader.term(); lease != nil && ctx.Err() == nil {
				t.Errorf("lead ended: %v", err)
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); leading.Wait() })
	p.eventually("lead", p.leader.leads)
	return p
}

// open opens a store that ends with the test.
func (p *process) open(addr, dir string) driver.Driver {
	p.t.Helper()
	var d driver.Driver
	p.eventually("open", func(ctx context.Context) (err error) {
		d, err = stores.Open(ctx, p.r.url(addr, dir))
		return err
	})
	p.t.Cleanup(func() { d.Close() })
	return d
}

func (p *process) locker(d driver.Driver, ttl time.Duration) *leasehold.Locker {
	p.t.Helper()
	l, err := leasehold.New(d, &leasehold.Options{TTL: ttl})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { l.Close() })
	return l
}

// eventually has a call succeed, sooner or later.
func (p *process) eventually(what string, call func(ctx context.Context) error) {
	p.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(p.t.Context(), 15*time.Second)
		err := call(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: %v", what, err)
		}
	}
}

// works has the process take a lock, renew one, and lead.
func (p *process) works(when string) {
	p.t.Helper()
	p.eventually(when+": acquire", p.acquire)
	p.eventually(when+": lead", p.leader.leads)
	p.eventually(when+": extend", func(ctx context.Context) error {
		if p.held.Context().Err() != nil {
			p.t.Fatalf("%s: the lease was lost: %v", when, context.Cause(p.held.Context()))
		}
		return p.held.Extend(ctx, heldFor)
	})
}

func (p *process) acquire(ctx context.Context) error {
	p.number++ // a call whose answer was lost may hold the one before
	lease, err := p.long.Acquire(ctx, fmt.Sprint("short/", p.number))
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

// refused has a process fail that has the secrets of a generation: else nothing was withdrawn.
func (p *process) refused(n int) {
	p.t.Helper()
	m := &mount{t: p.t, dir: p.t.TempDir()}
	m.swap(p.r.files(n))
	p.eventually(fmt.Sprint("withdraw generation ", n), func(ctx context.Context) error {
		d, err := stores.Open(ctx, p.r.url(p.r.addr, m.dir))
		if err != nil {
			return nil
		}
		defer d.Close()
		l, err := leasehold.New(d, &leasehold.Options{TTL: heldFor})
		if err != nil {
			return err
		}
		defer l.Close()
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if _, err := l.TryAcquire(ctx, fmt.Sprint("old/", p.t.Name(), time.Now().UnixNano())); err == nil {
			return errors.New("it is taken")
		}
		return nil
	})
}

// replaced is what happens as a rule: the new secrets are there, the old ones are withdrawn, and connections end.
func (p *process) replaced() {
	p.mount.swap(p.r.files(1))
	p.r.serve(1)
	p.proxy.Reset()
	p.refused(0)
	p.proxy.Reset() // a server may take a moment to withdraw them
	p.works("replaced")
}

// spoilt has files that are of no use for a moment, in which a connection is made.
func (p *process) spoilt() {
	good := p.r.files(1)
	for _, name := range slices.Sorted(maps.Keys(good)) {
		path, text := filepath.Join(p.mount.dir, name), good[name]
		spoils := map[string]func() error{
			"missing": func() error { return os.Rename(path, path+".away") },
			"empty":   func() error { return os.Truncate(path, 0) },
		}
		if p.r.halves {
			spoils["half written"] = func() error { return os.Truncate(path, int64(len(text)/2)) }
		}
		for _, what := range slices.Sorted(maps.Keys(spoils)) {
			if err := spoils[what](); err != nil {
				p.t.Fatal(err)
			}
			p.proxy.Reset()
			p.works(name + " " + what)
			if what == "missing" {
				if err := os.Rename(path+".away", path); err != nil {
					p.t.Fatal(err)
				}
			}
			p.mount.edit(name, text)
		}
	}
}

// late has the old secrets withdrawn before the new ones are there, which somebody then writes bit by bit.
func (p *process) late() {
	p.r.serve(2)
	p.proxy.Reset()
	p.refused(1)
	p.proxy.Reset()
	for end := time.Now().Add(within); !p.r.lasts; time.Sleep(50 * time.Millisecond) {
		if _, err := p.leader.term(); err != nil {
			break
		}
		if time.Now().After(end) {
			p.t.Fatal("it leads on without a secret that the server takes")
		}
	}
	p.isPatient()
	for name, text := range p.r.files(2) {
		p.mount.edit(name, text[:len(text)/2])
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
	_ = p.acquire(ctx) // while it is half there
	cancel()
	for name, text := range p.r.files(2) {
		p.mount.edit(name, text)
	}
	p.works("late")
}

// isPatient has many callers ask a server that refuses them, which it must not be asked as often.
func (p *process) isPatient() {
	if p.r.refusals == nil {
		return
	}
	before, start := p.r.refusals(), time.Now()
	ctx, cancel := context.WithTimeout(p.t.Context(), 3*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
				if lease, err := p.long.TryAcquire(ctx, fmt.Sprint("crowd/", i)); err == nil {
					p.t.Error("granted to an old secret")
					_ = lease.Release(ctx)
				}
			}
		})
	}
	all.Wait()
	// Four a second for each way to the server, of which there are two: to ask and to listen.
	if n, most := p.r.refusals()-before, 8*time.Since(start).Seconds()+8; float64(n) > most || n == 0 {
		p.t.Errorf("%d logins were refused in %v; want 1 to %.0f", n, time.Since(start), most)
	}
}

// brief are the engines whose certificates are replaced in the short lane.
var brief = []string{"Redis", "PostgreSQL", "http"}

func TestRotated(t *testing.T) {
	t.Parallel()
	for _, c := range cases {
		t.Run(strings.ReplaceAll(c.engine+"/"+c.kind, " ", "-"), func(t *testing.T) {
			t.Parallel()
			if c.slow {
				servers.OnlyWithAll(t)
			}
			if c.kind == certificate && !slices.Contains(brief, c.engine) {
				servers.Long(t, "its password is replaced, and certificates of three others are")
			}
			r := c.start(t)
			r.engine, r.kind = c.engine, c.kind
			p := start(t, r)
			p.replaced()
			p.spoilt()
			p.late()
		})
	}
}

// kinds are the columns of the page's table.
var kinds = []string{secret, certificate}

const secret, certificate = "password, token or key", "certificate and authority"

// The table of the page has each engine and kind that is tried here, and no other.
func TestPageHasTheRotations(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"../../docs/bad-day.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, section, _ := strings.Cut(string(text), "\n## Rotated secrets\n")
		section, _, _ = strings.Cut(section, "\n## ")
		found := make(map[string]bool)
		for line := range strings.Lines(section) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| engine") || len(cells) != 1+len(kinds) {
				continue
			}
			for i, kind := range kinds {
				if cell := strings.TrimSpace(cells[1+i]); cell != "–" {
					found[strings.TrimSpace(cells[0])+": "+kind] = true
				}
			}
		}
		tried := make(map[string]bool)
		for _, c := range cases {
			tried[c.engine+": "+c.kind] = true
		}
		if !maps.Equal(found, tried) {
			t.Errorf("%s has %q; tried are %q", page, slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(tried)))
		}
	}
}
