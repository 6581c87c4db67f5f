package page

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/memory"
)

func TestTenThousandLocks(t *testing.T) {
	t.Parallel()
	const many = 10_000
	d := memory.New()
	for i := range many { // by the engine, because as many requests would take all other tests' time
		c := claimtest.New(t, d, driver.Request{Resource: fmt.Sprintf("orders/%05d", i), Owner: fmt.Sprint(i), TTL: time.Hour})
		claimtest.Granted(t, c)
	}
	s := embeddedOn(t, d, nil, passed)
	p := open(t, s.url+"/#/locks")
	p.reads("#count", "50 on this page")
	if asked := eval[[]string](p, `performance.getEntriesByType('resource').map((e) => e.name).filter((n) => n.includes('v1/locks'))`); len(asked) == 0 || slices.ContainsFunc(asked, func(url string) bool { return !strings.Contains(url, "limit=50") }) {
		t.Errorf("for fifty rows the console asks for %q", asked)
	}
	rows := func(want int) {
		t.Helper()
		if got := eval[int](p, `document.querySelectorAll('.row').length`); got != want {
			t.Errorf("%d rows are drawn, want %d", got, want)
		}
	}
	rows(50)
	first := p.text(".row .c-name")
	p.click("#on")
	p.until("the next page", func() bool { text := p.text(".row .c-name"); return text != "" && text != first }, "#count")
	p.do(chromedp.NavigateBack())
	p.until("the page before", func() bool { return p.text(".row .c-name") == first }, "#count")
	p.click(".c-held button") // which the service does not sort by
	p.reads("#count", "1–50 of 5,000, out of the first 5,000")
	p.reads("#more", "There may be more")
	rows(50)
	p.click("#more-button")
	p.reads("#count", "1–50 of 10,000, out of 10,000")
	p.until("there is nothing more", func() bool { return p.text("#more") == "" }, "#count")
	p.write("#q", "0472")
	p.reads("#count", "11 of 10,000")
	p.write("#q", "9")
	p.reads("#count", "1 of 10,000")
	p.reads(".row", "orders/04729")
	p.write("#prefix", "orders/047")
	p.reads("#count", "1 of 100")
	if hash := eval[string](p, `location.hash`); hash != "#/locks?sort=held&dir=desc&q=04729&prefix=orders%2F047" {
		t.Errorf("the address is %q", hash)
	}
	other := open(t, eval[string](p, `location.href`)) // whoever is sent it sees the same
	other.reads("#count", "1 of 100")
	other.reads(".row", "orders/04729")
	p.click(".quiet")
	p.reads("#count", "50 on this page")
}

// What somebody types while the address takes what was typed before stays.
func TestNoKeyIsLost(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("orders/1", "one", "ci run 17", 10*minute)
	p := open(t, s.url+"/#/locks")
	p.reads(".row", "ci run 17")
	shown := run(p, chromedp.Evaluate[[]string](`new Promise((resolve) => {
		const field = document.getElementById('q'), shown = []
		const type = (text) => { field.value = text; field.dispatchEvent(new Event('input', { bubbles: true })) }
		const replace = history.replaceState
		history.replaceState = function (...args) {
			replace.apply(history, args)
			if (location.hash.endsWith('q=orde')) type('order')
		}
		const look = () => {
			shown.push(field.value)
			location.hash.endsWith('q=order') ? resolve(shown) : requestAnimationFrame(look)
		}
		type('orde')
		look()
	})`, chromedp.EvalAwaitPromise))
	for i, text := range shown {
		if i > 0 && len(text) < len(shown[i-1]) {
			t.Fatalf("the field reads %q after %q", text, shown[i-1])
		}
	}
}

// However many locks there are, the console looks through a bounded number of them.
func TestTheSearchIsBounded(t *testing.T) {
	t.Parallel()
	var began, most atomic.Int64
	var slow atomic.Bool // a look takes about the five seconds after which it shows what it has
	s := embedded(t, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		if r.URL.Path != "/v1/locks" {
			service.ServeHTTP(w, r)
			return
		}
		var from, limit int
		_, _ = fmt.Sscan(r.URL.Query().Get("after"), &from) // the first page has none
		_, _ = fmt.Sscan(r.URL.Query().Get("limit"), &limit)
		if from == 0 {
			began.Store(time.Now().UnixNano())
		}
		if time.Since(time.Unix(0, began.Load())) > 4*time.Second {
			slow.Store(true)
		}
		most.Store(max(most.Load(), int64(from+limit)))
		var all strings.Builder
		for i := range limit {
			fmt.Fprintf(&all, `,{"name":"n/%07d","token":"1","holders":[{"owner":"o","handle":"o~h","mode":"exclusive","token":"1","held_ms":%d,"left_ms":1000000}],"waiters":[]}`, from+i, from+i)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"locks":[%s],"next":"%d"}`, all.String()[1:], from+limit)
	})
	p := open(t, s.url+"/#/locks?sort=held&dir=desc")
	for range 3 {
		p.reads("#count", "out of the first ")
		p.click("#more-button")
	}
	p.reads("#more", "A prefix covers all")
	p.until("the whole search", func() bool { return most.Load() >= 20_000 || slow.Load() }, "#count")
	if !slow.Load() {
		p.reads("#count", "out of the first 20,000")
	}
	if eval[bool](p, `Boolean(document.querySelector('#more-button'))`) {
		t.Error("it offers to go on without end")
	}
	if n := most.Load(); n > 20_000 {
		t.Errorf("it asks for %d", n)
	}
}

func TestHostileNamesAndNotes(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	p := open(t, s.url+"/#/locks")
	p.reads("#status", "live")
	for i, text := range []string{
		`<img src=x onerror="window.hacked=1">`, `</bdi><script>window.hacked=1</script>`, `javascript:window.hacked=1`, `a/../b?x=1#/lock/y`,
		`"' onmouseover=window.hacked=1 x="`, `%2e%2e%2f%00`, "back \u202Ewards", "zero\u200Bwidth", "__proto__", "日本 🔒", "event: granted data: {}",
	} {
		s.hold(text, fmt.Sprint("owner-", i), text, minute)
		p.do(chromedp.SetValue(chromedp.CSS("#q"), text))
		eval[bool](p, `document.getElementById('q').dispatchEvent(new Event('input', { bubbles: true }))`)
		row := strings.NewReplacer("\u202E", `\u{202e}`, "\u200B", `\u{200b}`).Replace(text)
		p.reads("#count", "1 of")
		p.reads(".row .c-name", row)
		p.click(".row a")
		p.reads("#lock-name", row)
		p.reads("#holders .who", row)
		p.click(".crumbs a")
		p.reads(".row .c-name", row) // as it was filtered
	}
	p.click("#language")
	for _, view := range []string{"#/", "#/events"} {
		eval[string](p, fmt.Sprintf(`location.hash = %q`, view))
		p.reads("h1", map[string]string{"#/": "概览", "#/events": "事件"}[view])
	}
	if eval[bool](p, `'hacked' in window`) {
		t.Error("a name was run")
	}
	if others := eval[[]string](p, `performance.getEntriesByType('resource').map((e) => e.name).filter((n) => !n.startsWith(location.origin + '/'))`); len(others) > 0 {
		t.Errorf("the console asks others: %q", others)
	}
	resp, err := http.Get(s.url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if policy := resp.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %q", policy)
	}
}

func TestChineseNarrowAndDark(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.hold("秒杀/商品-42", "one", "订单服务 "+strings.Repeat("很长", 40), 10*minute)
	s.hold(strings.Repeat("long", 50), "two", "", 10*minute)
	p := open(t, s.url+"/#/locks")
	p.reads("#status", "live")
	light := eval[string](p, `getComputedStyle(document.body).backgroundColor`)
	p.click("#language")
	p.reads("#status", "实时")
	if lang := eval[string](p, `document.documentElement.lang`); lang != "zh-CN" {
		t.Errorf("the language is %q", lang)
	}
	p.do(chromedp.Reload())
	p.reads("#status", "实时") // it is remembered
	p.sees(390, 844, true)
	p.until("it is dark", func() bool { return eval[string](p, `getComputedStyle(document.body).backgroundColor`) != light }, "#status")
	p.reads(".row", "剩余")
	for _, width := range []int64{390, 320} {
		p.sees(width, 740, true)
		for _, hash := range []string{"#/", "#/locks", "#/events", "#/me", "#/lock/" + strings.Repeat("long", 50)} {
			eval[string](p, fmt.Sprintf(`location.hash = %q`, hash))
			p.reads("#console", "Leasehold")
			p.until(hash+" is shown", func() bool { return p.text("h1") != "" }, "#console")
			if wide := eval[int](p, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
				t.Errorf("%.10s: %d pixels stick out at %d", hash, wide, width)
			}
			traps := eval[[]string](p, `[...document.querySelectorAll('body *')].filter((e) => e.scrollHeight > e.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(e).overflowY)).map((e) => e.tagName + '.' + e.className)`)
			if len(traps) > 0 {
				t.Errorf("%.10s: %q scroll inside the page", hash, traps)
			}
		}
	}
}

// On a phone the filters do not fill the screen: they open with a button, which says how many are in use.
func TestFiltersFoldOnAPhone(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	s.grant("orders/1", 10*minute, map[string]any{"host": "web-7", "program": "billing"})
	p := open(t, s.url+"/#/locks")
	p.sees(390, 844, false)
	p.reads(".row", "billing")
	seen := func(selector string) bool {
		return eval[bool](p, fmt.Sprintf(`document.querySelector(%q)?.checkVisibility() ?? false`, selector))
	}
	if seen("#host") || seen(".c-held button") {
		t.Error("filters fill the screen")
	}
	if top := eval[float64](p, `document.querySelector('.row').getBoundingClientRect().top`); top > 300 {
		t.Errorf("the first row begins at %.0f of 844", top)
	}
	p.click(".fold")
	p.write("#host", "web-7")
	p.reads(".fold", "1")
	p.click(".fold")
	p.until("they fold", func() bool { return !seen("#host") }, "#console")
	p.reads(".row", "billing")
	p.sees(1200, 800, false)
	p.until("there is room", func() bool { return seen("#host") && !seen(".fold") }, "#console")
}

// Rows have room of their own, whatever the screen becomes.
func TestRowsDoNotOverlap(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	for i := range 30 {
		s.hold(fmt.Sprintf("rotate/%02d/%s", i, strings.Repeat("x", i*4)), fmt.Sprint("o", i), strings.Repeat("note ", i), 10*minute)
	}
	p := open(t, s.url+"/#/locks")
	p.reads("#count", "30 in all")
	for _, size := range [][2]int64{{1440, 900}, {390, 844}, {844, 390}, {390, 844}, {1024, 768}, {320, 640}} {
		p.sees(size[0], size[1], false)
		overlaps := eval[[]string](p, `(() => {
			const boxes = [...document.querySelectorAll('.row')].map((row) => row.getBoundingClientRect())
			const wrong = boxes.filter((box, i) => i > 0 && box.top < boxes[i - 1].bottom - 0.5).map((box) => 'rows at ' + box.top)
			for (const row of document.querySelectorAll('.row')) {
				const cells = [...row.children].map((cell) => cell.getBoundingClientRect()).filter((box) => box.width > 0 && box.height > 0)
				for (const a of cells) for (const b of cells) {
					if (a !== b && a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5) wrong.push('cells at ' + a.top)
				}
			}
			return wrong
		})()`)
		if len(overlaps) > 0 {
			t.Errorf("%v: %q", size, overlaps[:1])
		}
	}
}

func TestKeyboardAlone(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	for i := range 30 {
		s.hold(fmt.Sprintf("key/%02d", i), fmt.Sprint("o", i), "", 10*minute)
	}
	p := open(t, s.url+"/#/locks")
	p.reads("#count", "30 in all")
	p.do(chromedp.KeyEvent("/"))
	p.until("the search has the focus", func() bool { return eval[string](p, `document.activeElement.id`) == "q" }, "#count")
	p.until("the key is typed", func() bool { return eval[string](p, `document.activeElement.value`) == "/" }, "#count") // as what is sent here is in any case
	p.do(chromedp.KeyEvent(kb.Backspace))
	p.until("it is deleted", func() bool { return eval[string](p, `document.activeElement.value`) == "" }, "#count")
	p.do(chromedp.KeyEvent("key/"))
	p.reads("#count", "30 of 30")
	for i := range 21 {
		p.do(chromedp.KeyEvent(kb.ArrowDown))
		p.until("the next row has the focus", func() bool {
			return strings.Contains(eval[string](p, `document.activeElement.textContent`), fmt.Sprintf("key/%02d", i))
		}, "#count")
	}
	p.do(chromedp.KeyEvent(kb.Enter))
	p.reads("#lock-name", "key/20")
	if focused := eval[string](p, `document.activeElement.tagName`); focused != "H1" {
		t.Errorf("the focus is on %s, not on what was opened", focused)
	}
	p.do(chromedp.KeyEvent(kb.Escape))
	p.reads("#count", "30 of 30")
	width := eval[string](p, `(() => { document.getElementById('language').focus({ focusVisible: true }); return getComputedStyle(document.activeElement).outlineWidth })()`)
	if width != "3px" {
		t.Errorf("the focus is seen by an outline of %s", width)
	}
}
