package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/kubelock"
)

// roleOfThePage is the Role that the page gives to who only locks.
func roleOfThePage(t testing.TB) *rbac.Role {
	t.Helper()
	page, err := os.ReadFile("../../docs/engines/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "```yaml\n")
	text, _, closed := strings.Cut(after, "```")
	role := &rbac.Role{}
	if err := yaml.UnmarshalStrict([]byte(text), role); !found || !closed || err != nil {
		t.Fatalf("the page has no Role: %v", err)
	}
	return role
}

// The Role of the page is enough, and each of its verbs is needed, but for watch, without which
// waiters ask.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	k := server(t)
	admin, role := clients(t, k), roleOfThePage(t)
	bind(t, admin, role)
	d, err := onLocks(configOf(t, k, "locker"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := leasehold.New(d, &leasehold.Options{TTL: ttl, HandOver: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); d.Close() })
	round := 0
	all := func() error {
		round++
		_, listed := l.Page(t.Context(), leasehold.PageOptions{})
		return errors.Join(listed, waitOnce(t.Context(), l, fmt.Sprint("round/", round)))
	}
	eventually(t, "with all rights", nil, all) // the server learns of Roles a little later
	verbs := role.Rules[0].Verbs
	for i, verb := range verbs {
		want := kubelock.ErrAuth
		if verb == "watch" {
			want = nil
		}
		role.Rules[0].Verbs = slices.Delete(slices.Clone(verbs), i, i+1)
		if _, err := admin.RbacV1().Roles(namespace).Update(t.Context(), role, meta.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "without "+verb, want, all)
	}
}

// bind gives locker a new Role.
func bind(t testing.TB, admin clientset.Interface, role *rbac.Role) {
	t.Helper()
	if _, err := admin.RbacV1().Roles(namespace).Create(t.Context(), role, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbac.RoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: role.Name},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: "User", Name: "locker"}},
	}
	if _, err := admin.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// waitOnce takes a lock twice, the second time by waiting for the first.
func waitOnce(ctx context.Context, l *leasehold.Locker, name string) error {
	first, err := l.Acquire(ctx, name, leasehold.Shared())
	if err != nil {
		return err
	}
	got := make(chan error, 1)
	go func() { got <- do(l, name) }()
	var refused error
	for end := time.Now().Add(ttl); ; time.Sleep(50 * time.Millisecond) {
		st, err := l.Inspect(ctx, name)
		if refused = err; err != nil || len(st.Waiters) > 0 || time.Now().After(end) {
			break
		}
	}
	return errors.Join(refused, first.Release(ctx), <-got)
}

// eventually repeats a call until it comes to want.
func eventually(t testing.TB, what string, want error, call func() error) {
	t.Helper()
	for end := time.Now().Add(ttl); ; time.Sleep(100 * time.Millisecond) {
		err := call()
		if errors.Is(err, want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v; want %v", what, err, want)
		}
	}
}

// What is missing, wrong or may not be done is told by name, and nothing is held.
func TestWrongServers(t *testing.T) {
	t.Parallel()
	k := server(t)
	admin, locker := k.Kubeconfig("admin", k.Addr()), k.Kubeconfig("locker", k.Addr())
	nobody, away := k.Kubeconfig("nobody", k.Addr()), k.Kubeconfig("admin", "127.0.0.1:1")
	for url, want := range map[string]error{
		"kubernetes://locks?kubeconfig=" + admin:                 nil,
		"kubernetes://locks?context=x&kubeconfig=" + admin:       nil,
		"kubernetes://locks?context=none&kubeconfig=" + admin:    driver.ErrURL,
		"kubernetes://none?kubeconfig=" + admin:                  kubelock.ErrNoNamespace,
		"kubernetes://locks?kubeconfig=" + locker:                kubelock.ErrAuth,
		"kubernetes://locks?kubeconfig=" + nobody:                kubelock.ErrAuth,
		"kubernetes://locks?kubeconfig=" + away:                  kubelock.ErrUnreachable,
		"kubernetes://locks?kubeconfig=" + admin + "-is-missing": driver.ErrURL,
	} {
		if err := try(t, url); !errors.Is(err, want) {
			t.Errorf("%s: %v; want %v", url, err, want)
		}
	}
}

// Whoever can log in is told the server's version and clock, whoever cannot the clock, and a server that is
// not there is told by name.
func TestCheck(t *testing.T) {
	t.Parallel()
	k := server(t)
	for _, c := range []struct {
		user, addr string
		want       error
		about      []string
	}{
		{"locker", k.Addr(), nil, []string{driver.AboutClock, driver.AboutVersion}},
		{"nobody", k.Addr(), nil, []string{driver.AboutClock}},
		{"locker", "127.0.0.1:1", kubelock.ErrUnreachable, nil},
	} {
		d, err := kubelock.OpenURL(t.Context(), "kubernetes://locks?kubeconfig="+k.Kubeconfig(c.user, c.addr))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		found, err := d.(driver.Checker).Check(t.Context())
		var about []string
		for _, f := range found {
			if about = append(about, f.About); f.Level != driver.Fine {
				t.Errorf("%s: %v", c.user, f)
			}
		}
		if !errors.Is(err, c.want) || !slices.Equal(about, c.about) {
			t.Errorf("%s at %s: %v, %v; want %v, %v", c.user, c.addr, found, err, c.about, c.want)
		}
	}
}

// try makes one attempt on what a URL names.
func try(t testing.TB, url string) error {
	t.Helper()
	d, err := kubelock.OpenURL(t.Context(), url)
	if err != nil {
		return err
	}
	defer d.Close()
	l, err := leasehold.New(d, &leasehold.Options{TTL: ttl})
	if err != nil {
		return err
	}
	defer l.Close()
	return do(l, "a")
}

// What is damaged, or of a newer version, is told and left alone, and hides nothing else.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	k := server(t)
	l, leases := lockerOn(t, k), clients(t, k).CoordinationV1().Leases(namespace)
	const key = "leasehold-go.github.io/record"
	for name, value := range map[string]string{"newer": `{"v":3,"nonce":"x"}`, "damaged": `{"v":1,"nonce":"x","claims":[{"stat`, "alien": "hello", "empty": ""} {
		lease := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: name, Annotations: map[string]string{key: value}}}
		if _, err := leases.Create(t.Context(), lease, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := do(l, name); !errors.Is(err, driver.ErrCorrupt) && name != "empty" {
			t.Errorf("%s: %v; want ErrCorrupt", name, err)
		}
		if left, err := leases.Get(t.Context(), name, meta.GetOptions{}); err != nil || left.Annotations[key] != value && name != "empty" {
			t.Errorf("%s was changed: %v, %v", name, left.Annotations, err)
		}
	}
	if _, err := l.Acquire(t.Context(), "sound"); err != nil {
		t.Error(err)
	}
	page, err := l.Page(t.Context(), leasehold.PageOptions{})
	if states := page.States; len(states) != 1 || states[0].Resource != "sound" || !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("List: %v, %v; want one and ErrCorrupt", page.States, err)
	}
}

// A lease outlives servers that are killed and that stand still, the API's and etcd's, and the next is
// granted with a larger token; also when somebody has deleted the Lease.
func TestServersDieOrStand(t *testing.T) {
	t.Parallel()
	k := server(t)
	first, next := lockerOn(t, k), lockerOn(t, k)
	lease, err := first.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for what, fail := range map[string]func() (again func()){
		"the API server stood": func() func() { return k.Pause() },
		"the API server died":  func() func() { k.Kill(); return func() { k.Begin(); k.Ready() } },
		"etcd stood":           func() func() { return k.Etcd.Pause() },
		"etcd died":            func() func() { k.Etcd.Kill(); return func() { k.Etcd.Begin(); k.Etcd.Ready() } },
	} {
		again := fail()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if err := lease.Extend(ctx, ttl); err == nil || errors.Is(err, leasehold.ErrLost) {
			t.Errorf("while %s: %v; want an unknown outcome", what, err)
		}
		cancel()
		again()
		eventually(t, "Extend after "+what, nil, func() error { return lease.Extend(t.Context(), ttl) })
		eventually(t, "TryAcquire after "+what, leasehold.ErrBusy, func() error {
			_, err := next.TryAcquire(t.Context(), "a")
			return err
		})
	}
	before := lease.Token()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := clients(t, k).CoordinationV1().Leases(namespace).Delete(t.Context(), "a", meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fresh := lockerOn(t, k) // that knows of nothing
	if lease, err = fresh.Acquire(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if lease.Token() <= before {
		t.Errorf("token %d after %d", lease.Token(), before)
	}
}
