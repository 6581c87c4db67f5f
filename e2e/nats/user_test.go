package nats

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// locker is what the page has of the user that only locks.
func locker(t testing.TB) (config string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/engines/nats.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "## Rights\n")
	_, after, _ = strings.Cut(after, "```\n")
	config, _, closed := strings.Cut(after, "```")
	if !found || !closed {
		t.Fatal("the page has no such user")
	}
	return config
}

// within starts a server whose account has the user of config, and one that may do all and has made
// the bucket.
func within(t testing.TB, config string) *servers.NATS {
	t.Helper()
	s := servers.StartNATS(t, 1, "accounts { a { jetstream: enabled, users: [{user: admin, password: pw}\n"+config+"] }, none { users: [{user: n, password: n}] } }")[0]
	if err := natslock.CreateBucket(t.Context(), connected(t, s, nats.UserInfo("admin", "pw")), "locks", 1); err != nil {
		t.Fatal(err)
	}
	return s
}

// denials are what a server has refused.
type denials struct {
	mu  sync.Mutex
	all []string
}

// asLocker is a driver of the user, whose connection notes what is refused.
func (d *denials) asLocker(t testing.TB, s *servers.NATS) driver.Driver {
	t.Helper()
	return on(t, connected(t, s, nats.UserInfo("locker", "pw"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.all = append(d.all, err.Error())
	})))
}

func (d *denials) list() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.all)
}

// allCalls makes each call of the engine once, and one after which another is woken.
func allCalls(ctx context.Context, first, next driver.Driver) error {
	mine, err := leasehold.New(first, &leasehold.Options{TTL: ttl})
	if err != nil {
		return err
	}
	defer mine.Close()
	others, err := leasehold.New(next, &leasehold.Options{TTL: ttl})
	if err != nil {
		return err
	}
	defer others.Close()
	if err := handOver(ctx, mine, others, first.(driver.Operator)); err != nil {
		return err
	}
	if _, err := first.(driver.Checker).Check(ctx); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	return first.(driver.Operator).RaiseFence(ctx, "a", 1<<40)
}

// handOver has others wait for what mine extends and releases.
func handOver(ctx context.Context, mine, others *leasehold.Locker, look driver.Operator) error {
	const short = 10 * time.Second
	lease, err := mine.Acquire(ctx, "a")
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	woken := make(chan error, 1)
	go func() {
		lease, err := others.Acquire(ctx, "a", leasehold.Wait(short))
		if err == nil {
			err = lease.Release(ctx)
		}
		woken <- err
	}()
	if err := somebodyWaits(ctx, look); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	if err := lease.Extend(ctx, ttl); err != nil {
		return fmt.Errorf("extend: %w", err)
	}
	if err := lease.Release(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if err := <-woken; err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	return nil
}

// somebodyWaits returns when a list shows a waiter.
func somebodyWaits(ctx context.Context, look driver.Operator) error {
	for ; ; time.Sleep(10 * time.Millisecond) {
		all, _, err := look.List(ctx, "", "", 100)
		if err != nil || slices.ContainsFunc(all, func(st driver.State) bool { return len(st.Waiters) > 0 }) {
			return err
		}
	}
}

// The user of the page may do all that a driver does, and each of its rights is needed.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	config := locker(t)
	s := within(t, config)
	var denied denials
	if err := allCalls(t.Context(), denied.asLocker(t, s), denied.asLocker(t, s)); err != nil {
		t.Errorf("with all rights: %v", err)
	}
	if all := denied.list(); len(all) > 0 {
		t.Errorf("refused to who has all rights: %q", all)
	}
	lines := strings.SplitAfter(config, "\n")
	for i, line := range lines {
		_, after, found := strings.Cut(line, `"$`)
		if right, _, _ := strings.Cut(after, `"`); found && !strings.HasPrefix(right, "JS.FC.") { // which only a flood asks for
			t.Run(right, func(t *testing.T) {
				t.Parallel()
				s := within(t, strings.Join(slices.Delete(slices.Clone(lines), i, i+1), ""))
				var denied denials
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				start := time.Now()
				first, next := denied.asLocker(t, s), denied.asLocker(t, s)
				err := allCalls(ctx, first, next)
				if err != nil && !errors.Is(err, natslock.ErrAuth) && !strings.HasPrefix(right, "JS.API.CONSUMER.DELETE") { // that makes it slow
					t.Errorf("%v; want ErrAuth", err)
				}
				first.Close() // which ends what is watched
				next.Close()
				for end := time.Now().Add(10 * time.Second); len(denied.list()) == 0 && time.Now().Before(end); {
					time.Sleep(10 * time.Millisecond)
				}
				if len(denied.list()) == 0 {
					t.Errorf("is not needed: %v after %v", err, time.Since(start))
				}
			})
		}
	}
}

// The rights that the page adds let a user create the bucket, and each of them is needed.
func TestRightsToCreateTheBucket(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/engines/nats.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "To create the bucket, ")
	after, _, _ = strings.Cut(after, "\n\n")
	rights := regexp.MustCompile(`\$JS[A-Za-z._]*[A-Za-z]`).FindAllString(after, -1)
	if len(rights) != 2 {
		t.Fatalf("the page has these rights: %q", rights)
	}
	for without := range len(rights) + 1 { // the last lacks none
		var more strings.Builder
		for i, right := range rights {
			if i != without {
				fmt.Fprintf(&more, "%q\n", right)
			}
		}
		t.Run(fmt.Sprint(without), func(t *testing.T) {
			t.Parallel()
			config := strings.Replace(locker(t), "publish: [\n", "publish: [\n"+more.String(), 1)
			s := servers.StartNATS(t, 1, "accounts { a { jetstream: enabled, users: [\n"+config+"] } }")[0]
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := natslock.CreateBucket(ctx, connected(t, s, nats.UserInfo("locker", "pw")), "locks", 1)
			if complete := without == len(rights); complete != (err == nil) {
				t.Errorf("with %q: %v", more.String(), err)
			}
		})
	}
}

// A right that waiting lacks costs no lease of the same connection, however far away the server is.
func TestALackingRightCostsNoOtherCall(t *testing.T) {
	t.Parallel()
	var config []string
	for line := range strings.Lines(locker(t)) {
		if !strings.Contains(line, "CONSUMER.CREATE") {
			config = append(config, line)
		}
	}
	s := within(t, strings.Join(config, ""))
	link := servers.StartProxy(t, s.Addr())
	d, err := natslock.OpenURL(t.Context(), "nats://locker:pw@"+link.Addr()+"/locks")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	l, err := leasehold.New(d, &leasehold.Options{TTL: ttl, HandOver: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	lease, err := l.Acquire(t.Context(), "held", leasehold.Shared())
	if err != nil {
		t.Fatal(err)
	}
	link.Delay(200 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waited := make(chan error, 1)
	go func() {
		lease, err := l.Acquire(ctx, "held")
		if err == nil {
			err = lease.Release(ctx)
		}
		waited <- err
	}()
	for range 10 {
		if err := lease.Extend(t.Context(), ttl); err != nil {
			t.Fatalf("while somebody waits without the right to: %v", err)
		}
	}
	cancel()
	<-waited
}
