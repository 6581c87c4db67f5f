// Package kubernetes_test compares Leasehold on Kubernetes with client-go's leader election: how soon
// somebody else holds after a release and after kill -9, and what a lease that is held asks of the API server.
package kubernetes_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/bench/contest"
	"github.com/leasehold-go/leasehold/engine/kubelock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// The locks that are compared.
const (
	ours   = "leasehold"
	theirs = "leaderelection"
)

var both = []string{theirs, ours}

// What client-go's own programs use by default: component-base's RecommendedDefaultLeaderElectionConfiguration
// has 15, 10 and 2 seconds. Ours has the same time to live.
const ttl, renewDeadline, retryPeriod = 15 * time.Second, 10 * time.Second, 2 * time.Second

const namespace = "locks"

var engine = contest.Engine{Name: "Kubernetes"}

// holderEnv has this binary hold a lock as another process, until it is killed.
const holderEnv = "LEASEHOLD_BENCH_HOLDER"

func TestMain(m *testing.M) {
	if lock := os.Getenv(holderEnv); lock != "" {
		if err := holdForEver(lock); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	engine.Main(m)
}

// holdForEver takes the name that its input says, through the kubeconfig of the line before, and says so.
func holdForEver(lock string) error {
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	kubeconfig := in.Text()
	in.Scan()
	if _, err := open(lock, kubeconfig, new(atomic.Int64)).hold(context.Background(), in.Text()); err != nil {
		return err
	}
	fmt.Println("holds")
	in.Scan()
	return nil
}

// A candidate takes locks of one kind.
type candidate struct {
	// hold returns when it holds; release then gives the lock up, and returns when that is done.
	hold func(ctx context.Context, name string) (release func() error, err error)
}

func open(lock, kubeconfig string, requests *atomic.Int64) candidate {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return failing(err)
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{next, requests} })
	if lock == theirs {
		return elected(config)
	}
	return leased(config)
}

func failing(err error) candidate {
	return candidate{func(context.Context, string) (func() error, error) { return nil, err }}
}

type counted struct {
	next     http.RoundTripper
	requests *atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return c.next.RoundTrip(r)
}

func leased(config *rest.Config) candidate {
	d, err := kubelock.New(config, namespace, nil)
	if err != nil {
		return failing(err)
	}
	l, err := leasehold.New(d, &leasehold.Options{TTL: ttl, HandOver: -1})
	if err != nil {
		return failing(err)
	}
	return candidate{func(ctx context.Context, name string) (func() error, error) {
		lease, err := l.Acquire(ctx, name)
		if err != nil {
			return nil, err
		}
		return func() error { return lease.Release(context.Background()) }, nil
	}}
}

// identities makes each candidate another one: one that is named like the leader leads.
var identities atomic.Int64

// elected is leader election as its documentation has it, giving up its lease when it stops leading.
func elected(config *rest.Config) candidate {
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return failing(err)
	}
	return candidate{func(ctx context.Context, name string) (func() error, error) {
		leads, ended := make(chan struct{}), make(chan struct{})
		e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: meta.ObjectMeta{Name: name, Namespace: namespace}, Client: client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: fmt.Sprint("candidate-", os.Getpid(), "-", identities.Add(1))},
			},
			LeaseDuration: ttl, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { close(leads) }, OnStoppedLeading: func() {}},
		})
		if err != nil {
			return nil, err
		}
		life, stop := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{})) // it tells of each step
		go func() {
			e.Run(life)
			close(ended)
		}()
		release := func() error { stop(); <-ended; return nil }
		select {
		case <-leads:
			return release, nil
		case <-ctx.Done():
			_ = release() // it is none that fails
			return nil, context.Cause(ctx)
		}
	}}
}

// BenchmarkKubernetes starts one API server, on an etcd of its own, on the same machine.
func BenchmarkKubernetes(b *testing.B) {
	k := servers.StartKubernetes(b)
	k.AddNamespace(namespace)
	kubeconfig := k.Kubeconfig("admin", k.Addr())
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		b.Fatal(err)
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		b.Fatal(err)
	}
	contest.Server("kube-apiserver " + version.GitVersion)
	contest.Run(b,
		contest.Part{Name: "Held", Run: func(b *testing.B) { held(b, kubeconfig) }},
		contest.Part{Name: "Next", Run: func(b *testing.B) { next(b, kubeconfig) }},
	)
}

// held is what a lease costs that is only held.
func held(b *testing.B, kubeconfig string) {
	const lasts = time.Minute
	t := contest.NewTable("One lease held for a minute, 15 s to live", "lock", "requests", "requests an hour")
	perHour := make(map[string]float64)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, lock := range both {
		all.Go(func() {
			var requests atomic.Int64
			release, err := open(lock, kubeconfig, &requests).hold(b.Context(), "held-"+lock)
			if err != nil {
				b.Error(err)
				return
			}
			before := requests.Load()
			time.Sleep(lasts)
			sent := requests.Load() - before
			if err := release(); err != nil {
				b.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			perHour[lock] = float64(sent) * float64(time.Hour/lasts)
			t.Row(lock, sent, perHour[lock])
		})
	}
	all.Wait()
	contest.AtMost("requests of a lease held, times leader election's", perHour[ours]/perHour[theirs], 1)
}

// next is how soon a candidate that waits holds after the holder has released, and after it was killed.
func next(b *testing.B, kubeconfig string) {
	rounds := 7
	if testing.Short() {
		rounds = 1
	}
	t := contest.NewTable("Until the one that waits holds: median of the rounds (least to most)", "lock", "after a release", "after kill -9 of the holder")
	medians := make(map[string][]time.Duration)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, lock := range both { // they wait beside each other, for different names
		all.Go(func() {
			var took [2][]time.Duration
			for round := range rounds {
				for i, kill := range []bool{false, true} {
					h := handing{lock, kubeconfig, fmt.Sprint(lock, "-", round, "-", i)}
					d, err := h.over(b, 7*time.Second+time.Duration(round)*270*time.Millisecond, kill)
					if err != nil {
						b.Errorf("%s: %v", lock, err)
						return
					}
					took[i] = append(took[i], d)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			t.Row(lock, spread(took[0]), spread(took[1]))
			medians[lock] = []time.Duration{contest.Median(took[0]), contest.Median(took[1])}
		})
	}
	all.Wait()
	if b.Failed() {
		return
	}
	for i, what := range []string{"after a release", "after kill -9"} {
		contest.AtMost("the next holder "+what+", times leader election's", medians[ours][i].Seconds()/medians[theirs][i].Seconds(), 1)
	}
}

func spread(all []time.Duration) string {
	sec := func(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }
	return fmt.Sprintf("%s (%s to %s)", sec(contest.Median(all)), sec(contest.Percentile(all, 0)), sec(contest.Percentile(all, 100)))
}

// A handing is one name that one holds and another waits for.
type handing struct{ lock, kubeconfig, name string }

// over has the holder release the name, or killed, when somebody has waited for it for so long, and returns
// for how long that one waited then. The wait is none that a period divides.
func (h handing) over(b *testing.B, wait time.Duration, kill bool) (time.Duration, error) {
	end, err := h.held(b, kill)
	if err != nil {
		return 0, err
	}
	type grant struct {
		at      time.Time
		release func() error
		err     error
	}
	got := make(chan grant, 1)
	go func() {
		release, err := open(h.lock, h.kubeconfig, new(atomic.Int64)).hold(b.Context(), h.name)
		got <- grant{time.Now(), release, err}
	}()
	time.Sleep(wait)
	ended := time.Now()
	if err := end(); err != nil {
		return 0, err
	}
	g := <-got
	if g.err != nil {
		return 0, g.err
	}
	return g.at.Sub(ended), g.release()
}

// held takes the name, in this process or in another one that end kills.
func (h handing) held(b *testing.B, kill bool) (end func() error, err error) {
	if !kill {
		return open(h.lock, h.kubeconfig, new(atomic.Int64)).hold(b.Context(), h.name)
	}
	cmd, in, out := contest.Again(b, holderEnv+"="+h.lock)
	b.Cleanup(func() { in.Close(); _ = cmd.Wait() }) // it was killed
	fmt.Fprintf(in, "%s\n%s\n", h.kubeconfig, h.name)
	if line, err := out.ReadString('\n'); err != nil || strings.TrimSpace(line) != "holds" {
		return nil, fmt.Errorf("the holder says %q: %v", line, err)
	}
	return cmd.Process.Kill, nil
}
