// Package kubernetes runs kubelock on a real API server. make matrix runs its tests, since building that
// server takes minutes.
package kubernetes

import (
	"context"
	"strings"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/linear"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/engine/kubelock"
	"github.com/leasehold-go/leasehold/internal/apart"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/locktest"
)

// TestMain also runs the child processes of the conformance suite, whose address is a kubeconfig.
func TestMain(m *testing.M) {
	locktest.Main(m, func(address string) (driver.Driver, error) {
		config, err := clientcmd.BuildConfigFromFlags("", address)
		if err != nil {
			return nil, err
		}
		return onLocks(config)
	})
}

// server starts an API server that has the namespace.
func server(t testing.TB) *servers.Kubernetes {
	t.Helper()
	servers.OnlyWithAll(t)
	k := servers.StartKubernetes(t)
	k.AddNamespace(namespace)
	return k
}

const namespace = "locks"

// configOf is how a user logs in.
func configOf(t testing.TB, k *servers.Kubernetes, user string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", k.Kubeconfig(user, k.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// clients are those of an admin.
func clients(t testing.TB, k *servers.Kubernetes) *clientset.Clientset {
	t.Helper()
	config := configOf(t, k, "admin")
	config.QPS = -1
	c, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// onLocks is a driver whose leases may be shorter, and places too, than is sensible for a cluster.
func onLocks(config *rest.Config) (*kubelock.Driver, error) {
	return kubelock.New(config, namespace, &kubelock.Options{Options: caslock.Options{MinTTL: 100 * time.Millisecond, Place: 4 * time.Second}})
}

func open(t testing.TB, k *servers.Kubernetes) driver.Driver {
	t.Helper()
	d, err := onLocks(configOf(t, k, "admin"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// late: who comes when a lease is over watches it for a TTL of his own.
const late = 3 * time.Second

func harness(t testing.TB, k *servers.Kubernetes) locktest.Harness {
	return locktest.Harness{
		Open:    func(t testing.TB) driver.Driver { return open(t, k) },
		Address: k.Kubeconfig("admin", k.Addr()),
		Pause:   func(testing.TB) (resume func()) { return k.Pause() },
		Restart: func(testing.TB) {
			k.Kill()
			k.Begin()
			k.Ready()
		},
		NoLossNotice: true, Late: late, CallGoroutines: 6,
	}
}

func TestConformance(t *testing.T) {
	servers.OnlyWithAll(t)
	apart.Run(t, func(t *testing.T) { locktest.Run(t, harness(t, server(t))) })
}

func TestKubernetesIsLinearizable(t *testing.T) {
	t.Parallel()
	k := server(t)
	linear.CheckOf(t, 30, func(t testing.TB) driver.Driver { return open(t, k) })
}

const ttl = 3 * time.Minute // longer than a server takes to start on a busy machine

func lockerOn(t testing.TB, k *servers.Kubernetes) *leasehold.Locker {
	t.Helper()
	d := open(t, k)
	l, err := leasehold.New(d, &leasehold.Options{TTL: ttl, Note: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); d.Close() })
	return l
}

// leaseOf is what kubectl get lease shows.
func leaseOf(t testing.TB, k *servers.Kubernetes, name string) coordination.LeaseSpec {
	t.Helper()
	l, err := clients(t, k).CoordinationV1().Leases(namespace).Get(t.Context(), name, meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Spec
}

// The Lease says who holds it, since when, for how long, and how many did; and no owner whole.
func TestLeaseTellsTheTruth(t *testing.T) {
	t.Parallel()
	k := server(t)
	l := lockerOn(t, k)
	before := time.Now()
	var held coordination.LeaseSpec
	for round := range int32(3) {
		lease, err := l.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		first := leaseOf(t, k, "a")
		if err := lease.Extend(t.Context(), ttl); err != nil {
			t.Fatal(err)
		}
		held = leaseOf(t, k, "a")
		switch {
		case !strings.Contains(*held.HolderIdentity, " tester \u2063"), *held.HolderIdentity != *first.HolderIdentity:
			t.Errorf("holder %q, then %q", *first.HolderIdentity, *held.HolderIdentity)
		case *held.LeaseDurationSeconds != int32(ttl/time.Second):
			t.Errorf("%d seconds", *held.LeaseDurationSeconds)
		case held.AcquireTime.Time.Before(before.Truncate(time.Microsecond)), !held.AcquireTime.Equal(first.AcquireTime), held.AcquireTime.After(time.Now()):
			t.Errorf("acquired at %v, then %v; begun at %v", first.AcquireTime, held.AcquireTime, before)
		case held.RenewTime.Unix() <= first.RenewTime.Unix(): // leader election sees no more than seconds
			t.Errorf("renewed at %v, then %v", first.RenewTime, held.RenewTime)
		case *held.LeaseTransitions != round+1, *first.LeaseTransitions != round+1:
			t.Errorf("%d transitions, then %d", *first.LeaseTransitions, *held.LeaseTransitions)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if free := leaseOf(t, k, "a"); *free.HolderIdentity != "" || free.AcquireTime != nil || *free.LeaseTransitions != round+1 {
			t.Errorf("free: %v", free)
		}
	}
}

// do takes and releases a lock.
func do(l *leasehold.Locker, name string) error {
	return l.Do(context.Background(), name, func(context.Context) error { return nil })
}

// Names that are none of objects get Leases of their own, which are listed by their names.
func TestNamesAreListed(t *testing.T) {
	t.Parallel()
	k := server(t)
	l := lockerOn(t, k)
	for _, name := range []string{"orders.eu", "orders/42", "Orders/42", "orders-42", "leasehold-x", strings.Repeat("ü", 256), strings.Repeat("a", 300)} {
		if err := do(l, name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		lease, err := l.Acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		all, err := l.Page(t.Context(), leasehold.PageOptions{Prefix: name})
		if err != nil || len(all.States) != 1 || all.States[0].Resource != name {
			t.Errorf("%q: %v, %v", name, all, err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	leases, err := clients(t, k).CoordinationV1().Leases(namespace).List(t.Context(), meta.ListOptions{})
	if err != nil || len(leases.Items) != 7 {
		t.Errorf("%d Leases, %v", len(leases.Items), err)
	}
}
