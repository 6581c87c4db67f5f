package s3

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/s3lock"
	"github.com/leasehold-go/leasehold/internal/pages"
	"github.com/leasehold-go/leasehold/internal/servers"
)

const ttl = time.Minute

// try makes one attempt on what a URL names.
func try(t testing.TB, url string) error {
	t.Helper()
	d, err := s3lock.OpenURL(t.Context(), url)
	if err != nil {
		return err
	}
	defer d.Close()
	return attempt(t.Context(), d, "a")
}

func attempt(ctx context.Context, d driver.Driver, name string) error {
	c, err := d.Claim(driver.Request{Resource: name, Owner: "o", TTL: ttl})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err = c.Try(ctx)
	return err
}

// What is missing, wrong or may not be done is told by name, and nothing is held.
func TestWrongStores(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t)
	s.AddUser("nobody", "secret-of-nobody")
	root := servers.S3Key + ":" + servers.S3Secret
	slow := front(t, s.Endpoint(), func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
	})
	skewed := front(t, s.Endpoint(), func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "<Error><Code>RequestTimeTooSkewed</Code><Message>too large</Message></Error>")
	})
	alien := httptest.NewServer(http.NotFoundHandler())
	defer alien.Close()
	for url, want := range map[string]error{
		urlOf(root, "locks", s.Endpoint()):                      nil,
		urlOf(root, "nosuch", s.Endpoint()):                     s3lock.ErrNoBucket,
		urlOf("root:wrong", "locks", s.Endpoint()):              s3lock.ErrAuth,
		urlOf("who:secret", "locks", s.Endpoint()):              s3lock.ErrAuth,
		urlOf("nobody:secret-of-nobody", "locks", s.Endpoint()): s3lock.ErrAuth,
		urlOf(root, "locks", "http://127.0.0.1:1"):              s3lock.ErrUnreachable,
		urlOf(root, "locks", alien.URL):                         s3lock.ErrUnreachable,
		urlOf(root, "locks", slow):                              s3lock.ErrSlowDown,
		urlOf(root, "locks", skewed):                            s3lock.ErrClock,
	} {
		if err := try(t, url); !errors.Is(err, want) {
			t.Errorf("%s: %v; want %v", url, err, want)
		}
	}
	if err := try(t, urlOf(root, "locks", s.Endpoint())); !errors.Is(err, driver.ErrBusy) && err != nil {
		t.Errorf("after all: %v", err)
	}
}

// policy is what the page has of the user that only locks.
func policy(t testing.TB) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/engines/s3.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "## Rights\n")
	_, after, _ = strings.Cut(after, "```json\n")
	text, _, closed := strings.Cut(after, "```")
	if !found || !closed {
		t.Fatal("the page has no such user")
	}
	return text
}

// The user of the page may do all that a driver does, and each of the rights is needed.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t)
	s.AddUser("locker", "secret-of-locker")
	client, end := connect(s.Endpoint())
	defer end()
	whole := policy(t)
	set := func(text string) {
		t.Helper()
		if _, err := client.PutBucketPolicy(t.Context(), &s3.PutBucketPolicyInput{Bucket: aws.String("locks"), Policy: &text}); err != nil {
			t.Fatal(err)
		}
	}
	all := func() error {
		d, err := s3lock.OpenURL(t.Context(), urlOf("locker:secret-of-locker", "locks", s.Endpoint()))
		if err != nil {
			return err
		}
		defer d.Close()
		l, err := leasehold.New(d, &leasehold.Options{TTL: ttl})
		if err != nil {
			return err
		}
		defer l.Close()
		_, _, listed := d.(driver.Operator).List(t.Context(), "", "", 100)
		return errors.Join(listed, l.Do(t.Context(), "a", func(context.Context) error { return nil }))
	}
	set(whole)
	if err := all(); err != nil {
		t.Errorf("with all rights: %v", err)
	}
	for right, other := range map[string]string{"s3:GetObject": "s3:GetObjectTagging", "s3:PutObject": "s3:GetObjectTagging", "s3:ListBucket": "s3:GetBucketTagging"} {
		set(strings.Replace(whole, `"`+right+`"`, `"`+other+`"`, 1))
		if err := all(); !errors.Is(err, s3lock.ErrAuth) {
			t.Errorf("without %s: %v; want ErrAuth", right, err)
		}
	}
}

func lockerOn(t testing.TB, endpoint string) *leasehold.Locker {
	t.Helper()
	d := open(t, endpoint)
	l, err := leasehold.New(d, &leasehold.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); d.Close() })
	return l
}

// What is damaged, or of a newer version, is told and left alone, and hides nothing else.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	endpoint := fake(t)
	client, end := connect(endpoint)
	defer end()
	d := open(t, endpoint)
	defer d.Close()
	for name, value := range map[string]string{"newer": `{"v":3,"nonce":"x"}`, "damaged": `{"v":1,"nonce":"x","claims":[{"stat`, "alien": "hello", "empty": ""} {
		key := aws.String("leasehold/" + name + ".json")
		if _, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("locks"), Key: key, Body: strings.NewReader(value)}); err != nil {
			t.Fatal(err)
		}
		if err := attempt(t.Context(), d, name); !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("%s: %v; want ErrCorrupt", name, err)
		}
		out, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("locks"), Key: key})
		if err != nil {
			t.Fatal(err)
		}
		if left, err := io.ReadAll(out.Body); string(left) != value || err != nil {
			t.Errorf("%s was changed: %q, %v", name, left, err)
		}
		out.Body.Close()
	}
	if err := attempt(t.Context(), d, "sound"); err != nil {
		t.Error(err)
	}
	states, _, err := d.(driver.Operator).List(t.Context(), "", "", 100)
	if len(states) != 1 || states[0].Resource != "sound" || !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("List: %v, %v; want one and ErrCorrupt", states, err)
	}
}

// All names are listed, over pages, also long ones, and only those that begin as asked.
func TestListsOverPages(t *testing.T) {
	t.Parallel()
	endpoint := fake(t)
	paged := front(t, endpoint, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if q := r.URL.Query(); q.Get("list-type") != "" {
			q.Set("max-keys", "3")
			r.URL.RawQuery = q.Encode()
		}
		pass.ServeHTTP(w, r)
	})
	d := open(t, paged)
	defer d.Close()
	want := []string{"a/1", "a/2", "a/3", "a/4", "a/..", "a/" + strings.Repeat("/", 510), "a/" + strings.Repeat("x", 400)}
	slices.Sort(want)
	for _, name := range append([]string{"b", strings.Repeat("%", 512)}, want...) {
		if err := attempt(t.Context(), d, name); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	states, next, err := pages.Fill(t.Context(), d.(driver.Operator), "a/", "", 100)
	if next != "" {
		t.Errorf("there are more after %q", next)
	}
	var got []string
	for _, st := range states {
		got = append(got, st.Resource)
	}
	if !slices.Equal(got, want) || err != nil {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// A lease outlives its server's death and standstill, and the next is granted with a larger token.
func TestServerDiesOrStands(t *testing.T) {
	t.Parallel()
	s := servers.StartS3(t)
	first, next := lockerOn(t, s.Endpoint()), lockerOn(t, s.Endpoint())
	lease, err := first.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for what, fail := range map[string]func() (again func()){
		"stood": func() func() { return s.Pause() },
		"died":  func() func() { s.Kill(); return func() { s.Begin(); s.Ready() } },
	} {
		again := fail()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if err := lease.Extend(ctx, ttl); err == nil || errors.Is(err, leasehold.ErrLost) {
			t.Errorf("while the server %s: %v; want an unknown outcome", what, err)
		}
		cancel()
		again()
		if err := lease.Extend(t.Context(), ttl); err != nil {
			t.Errorf("after the server %s: %v", what, err)
		}
		if _, err := next.TryAcquire(t.Context(), "a"); !errors.Is(err, leasehold.ErrBusy) {
			t.Errorf("after the server %s: %v; want ErrBusy", what, err)
		}
	}
	before := lease.Token()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	lease, err = next.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if lease.Token() <= before {
		t.Errorf("token %d after %d", lease.Token(), before)
	}
}
