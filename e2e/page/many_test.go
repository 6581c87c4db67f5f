package page

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// many measures the console: go test ./page -run ManyLocks -many 100000 -v
var many = flag.Int("many", 0, "measure the console with `N` locks on Redis")

// watchTasks notes what keeps the page from answering its user for 50 ms or longer.
const watchTasks = `(() => {
	window.tasks = []
	new PerformanceObserver((list) => { for (const one of list.getEntries()) tasks.push(one.duration) }).observe({ type: 'longtask', buffered: true })
	window.seenAfter = (seen) => new Promise((resolve) => {
		const from = performance.now()
		const look = () => seen() ? resolve(performance.now() - from) : requestAnimationFrame(look)
		look()
	})
})()`

// How the console does with very many locks, for whoever looks at it.
func TestManyLocks(t *testing.T) {
	if *many == 0 {
		t.Skip("-many N measures it")
	}
	redis := servers.StartRedis(t)
	store := "redis://" + redis.Addr() + "/0"
	d, err := redislock.OpenURL(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := leasehold.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() }) // the leases end with the server
	var all sync.WaitGroup
	for part := range 64 {
		all.Go(func() {
			for i := part; i < *many; i += 64 {
				details := leasehold.Details{Host: fmt.Sprint("web-", i%97), Labels: map[string]string{"team": fmt.Sprint("team-", i%11)}}
				if _, err := locks.Acquire(t.Context(), fmt.Sprintf("orders/%06d", i*7919%*many), leasehold.TTL(2*time.Hour), leasehold.WithDetails(details)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	s := serve(t, store, "127.0.0.1:0")
	p := open(t, "about:blank")
	p.before(watchTasks)
	figure := func(what, act, seen string) {
		t.Helper()
		took := run(p, chromedp.Evaluate[float64](fmt.Sprintf(`(() => { %s; return seenAfter(() => %s) })()`, act, seen), chromedp.EvalAwaitPromise))
		t.Logf("%-24s %6.0f ms, longest task %4.0f ms, heap %3.0f MB, service %s", what, took, eval[float64](p, `Math.max(0, ...tasks.splice(0))`), eval[float64](p, `performance.memory.usedJSHeapSize / 1e6`), s.memory())
	}
	rows := `document.querySelectorAll('.row').length === 50`
	count := func(text string) string {
		return fmt.Sprintf(`document.querySelector('#count').textContent.includes(%q)`, text)
	}
	goTo := func(hash string) string { return fmt.Sprintf(`location.hash = %q`, hash) }
	click := func(selector string) string { return fmt.Sprintf(`document.querySelector(%q).click()`, selector) }
	p.do(chromedp.Navigate(s.url + "/#/locks"))
	figure("open the list", ``, rows)
	t.Logf("since the navigation began: %.0f ms", eval[float64](p, `performance.now()`))
	figure("the overview", goTo("#/"), `document.querySelector('.figures')`)
	figure("the list again", goTo("#/locks"), rows)
	figure("the next page", `window.first = document.querySelector('.row').textContent; `+click("#on"), rows+` && document.querySelector('.row').textContent !== first`)
	for _, by := range []string{"state", "holder", "host", "held", "lease", "waiting", "mode", "name"} {
		figure("sort by "+by, goTo("#/locks?dir=desc&sort="+by), `document.querySelector('.c-`+by+`[aria-sort=descending]') && `+count("5,000"))
	}
	figure("stay for 10 s", ``, `performance.now() - (window.began ??= performance.now()) > 10_000`)
	figure("a prefix", goTo("#/locks?prefix=orders%2F0472"), `document.querySelector('.row .c-name')?.textContent.startsWith('orders/0472')`)
	figure("filter by text", goTo("#/locks?q=web-13"), count("5,000"))
	for n := 2; n <= 4; n++ {
		figure(fmt.Sprintf("search %d of them", n*5000), click("#more-button"), count(fmt.Sprintf("%d,000", n*5)))
	}
	figure("stay for 20 s", ``, `performance.now() - (window.again ??= performance.now()) > 20_000`)
}

// memory is how much a service has in memory.
func (s *service) memory() string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return "?"
}
