package page

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// claims are what a person must not see: a row that is late, while every lease is renewed, or a row that says
// anything but "unknown" while the status does. The page looks by itself, with each frame.
const claims = `(() => {
	window.wrong = []
	window.unknown = 0
	const look = () => {
		const text = (selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent)
		const status = document.getElementById('status')?.textContent ?? ''
		const late = text('.row .is-late, .person .is-late')
		if (late.length > 0) wrong.push(status + ': ' + late.join())
		if (status.includes('UNKNOWN')) {
			unknown++
			const told = text('.row .c-state, .row .lease').filter((t) => !t.includes('unknown'))
			if (told.length > 0) wrong.push(status + ': ' + told.join())
		}
		requestAnimationFrame(look)
	}
	look()
	return true
})()`

// A store that hangs leaves what is shown unknown while it does, and live soon after. No lease is called late
// at any time: each was renewed as soon as the store served it.
func TestAStoreThatHangs(t *testing.T) {
	t.Parallel()
	redis := servers.StartRedis(t)
	s := serve(t, "redis://"+redis.Addr()+"/0", "127.0.0.1:0")
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		s.hold(name, "owner-"+name, "holder of "+name, 40*time.Second)
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	for _, name := range names {
		go func() {
			for ctx.Err() == nil {
				if status, _ := s.try("renew", map[string]any{"name": name, "owner": "owner-" + name, "ttl_ms": 40_000}); status != http.StatusOK {
					continue
				}
				time.Sleep(500 * time.Millisecond)
			}
		}()
	}
	p := open(t, s.url+"/#/locks")
	p.reads(".row:nth-child(4)", "left")
	eval[bool](p, claims)
	resume := redis.Pause()
	t.Cleanup(resume)
	p.reads("#status", "UNKNOWN")
	p.reads("#status", "no answer for")
	p.reads(".stale", "As of")
	resume()
	p.reads("#status", "live")
	p.reads(".row:nth-child(4)", "left")
	if seen := eval[int](p, `unknown`); seen == 0 {
		t.Error("the page itself saw no unknown state")
	}
	if wrong := eval[[]string](p, `wrong.slice(0, 5)`); len(wrong) > 0 {
		t.Errorf("the page claimed %q", wrong)
	}
}

// silence notes when a page gave a call up, and when it said that it does not know.
const silence = `(() => {
	const send = window.fetch
	window.fetch = (...asked) => {
		const answer = send(...asked)
		answer.catch(() => { window.givenUp ??= performance.now() })
		return answer
	}
	setInterval(() => { if (document.getElementById('status')?.textContent.includes('UNKNOWN')) window.unknown ??= performance.now() }, 50)
})()`

func (p *tab) saysSoBeforeItGivesUp() {
	p.t.Helper()
	p.until("it gives up", func() bool { return eval[bool](p, `Boolean(window.givenUp && window.unknown)`) }, "#status")
	if early := eval[float64](p, `givenUp - unknown`); early <= 0 {
		p.t.Errorf("it took a look to be given up, %.0f ms before it said so", -early)
	}
}

// What is shown grows old by itself, and not when a look that has no answer is given up.
func TestAnAnswerThatDoesNotCome(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if hangs.Load() && strings.HasPrefix(r.URL.Path, "/v1/lock") {
			<-r.Context().Done()
			return
		}
		service.ServeHTTP(w, r)
	})
	s.grant("a", 10*minute, map[string]any{"program": "worker", "pid": 7})
	lock, p := open(t, s.url+"/#/lock/a"), open(t, "about:blank")
	lock.click("#holders .evict")
	lock.reads("dialog .facts", "It was alive")
	lock.click("dialog .no")
	p.before(silence)
	p.do(chromedp.Navigate(s.url + "/#/locks?state=held"))
	p.reads(".row", "left")
	eval[bool](p, `delete window.givenUp`)
	hangs.Store(true)
	p.saysSoBeforeItGivesUp()
	p.reads(".row .c-state", "unknown") // the filter goes by what was known last
	lock.reads("#lock-state", "unknown")
	lock.click("#holders .evict")
	lock.reads("dialog .facts", "Its last renewal is unknown")
	hangs.Store(false)
	p.reads("#status", "live")
}

// What nobody answers for is unknown, not free.
func TestAnInstanceDies(t *testing.T) {
	t.Parallel()
	store := "redis://" + servers.StartRedis(t).Addr() + "/0"
	s := serve(t, store, "127.0.0.1:0")
	s.hold("a", "one", "", 10*minute)
	list, lock := open(t, s.url+"/#/locks"), open(t, s.url+"/#/lock/b")
	list.reads(".row", "left")
	lock.reads("#lock-state", "free")
	var others []*tab
	for _, view := range []string{"#/", "#/events", "#/me"} {
		p := open(t, s.url+"/"+view)
		p.reads("#status", "live")
		others = append(others, p)
	}
	s.kill()
	for _, p := range others {
		p.reads("#status", "UNKNOWN")
		p.reads(".stale", "As of")
	}
	list.reads("#status", "UNKNOWN")
	list.reads(".row .c-state", "unknown")
	list.reads(".row .lease", "unknown")
	lock.reads("#lock-state", "unknown")
	if opacity := eval[string](list, `getComputedStyle(document.querySelector('.known')).opacity`); opacity == "1" {
		t.Error("what is stale is not dimmed")
	}
	s = serve(t, store, s.address())
	list.reads("#status", "live")
	list.reads(".row", "left")
	lock.reads("#lock-state", "free")
	s.post("acquire", map[string]any{"name": "b", "owner": "two", "ttl_ms": 600_000})
	lock.reads("#lock-state", "held")
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

// A page that was frozen, as on a laptop that slept, shows nothing from before as live when it wakes.
func TestALaptopThatSleeps(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("a", "one", "", 10*minute)
	p := open(t, s.url+"/#/locks")
	p.reads(".row", "left")
	lifecycle := func(state page.SetWebLifecycleStateState) {
		t.Helper()
		if _, err := chromedp.Call(p.ctx, page.SetWebLifecycleState, page.SetWebLifecycleStateParams{State: state}); err != nil {
			t.Fatal(err)
		}
	}
	eval[bool](p, `(document.addEventListener('resume', () => setTimeout(() => { window.woken = document.getElementById('status').textContent })), true)`)
	lifecycle("frozen")
	s.stop(t) // so that nothing can be known when it wakes
	time.Sleep(8 * time.Second)
	lifecycle("active")
	p.until("it is drawn", func() bool { return eval[bool](p, `'woken' in window`) }, "#status")
	if woken := eval[string](p, `woken`); !strings.Contains(woken, "UNKNOWN") {
		t.Errorf("it wakes and says %q", woken)
	}
	p.reads("#status", "UNKNOWN")
	p.reads(".row", "unknown")
	s.resume(t)
	p.reads("#status", "live")
	p.reads(".row", "left")
}

// A browser's running clock may stand still while its machine sleeps: the wall clock tells.
func TestARunningClockThatStoodStill(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("a", "one", "", 10*minute)
	p := open(t, s.url+"/#/locks")
	p.reads(".row", "left")
	s.stop(t)
	eval[bool](p, `(() => {
		const [running, wall] = [performance.now(), Date.now.bind(Date)]
		performance.now = () => running
		Date.now = () => wall() + 3600e3
		return true
	})()`)
	p.reads("#status", "no answer for 1 h")
	p.reads(".row", "unknown")
	s.resume(t)
	p.reads("#status", "live")
}

// What a service tells no TTL of has a neutral bar, and "no renewal seen" counts answers alone.
func TestALeaseWithoutATTL(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("a", "one", "holder", 10*minute)
	p := open(t, "about:blank")
	p.before(`(() => {
		const json = Response.prototype.json
		Response.prototype.json = async function () {
			return JSON.parse(JSON.stringify(await json.call(this)), (key, value) => ['ttl_ms', 'renewed_ms'].includes(key) ? undefined : value)
		}
	})()`)
	p.do(chromedp.Navigate(s.url + "/#/locks"))
	p.reads(".row", "no renewal seen for")
	if bar := eval[string](p, `document.querySelector('.row .lease').className + ' ' + document.querySelector('.row .bar').className`); bar != "lease is-calm bar open" {
		t.Errorf("its bar is %q", bar)
	}
	s.renew("a", "one", 10*minute)
	p.until("the renewal was seen", func() bool { return !strings.Contains(p.text(".row"), "renewal") }, ".row")
}

func (s *service) stop(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

func (s *service) resume(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
