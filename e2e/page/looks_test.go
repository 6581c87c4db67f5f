package page

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

func TestTenThousandLocks(t *testing.T) {
	t.Parallel()
	const many = 10_000
	s := serve(t, "memory:", "127.0.0.1:0")
	var all sync.WaitGroup
	for part := range 16 {
		all.Go(func() {
			for i := part; i < many; i += 16 {
				name := fmt.Sprintf("orders/%05d", i)
				if status, err := s.try("acquire", map[string]any{"name": name, "ttl_ms": 3_600_000}); status != 200 {
					t.Errorf("%s: %d %v", name, status, err)
				}
			}
		})
	}
	all.Wait()
	p := open(t, s.url)
	p.reads("#count", "the first 50")
	p.reads("#more", "There may be more")
	if asked := eval[[]string](p, `performance.getEntriesByType('resource').map((e) => e.name).filter((n) => n.includes('v1/locks'))`); len(asked) == 0 || slices.ContainsFunc(asked, func(url string) bool { return !strings.Contains(url, "limit=50") }) {
		t.Errorf("for fifty rows the page asks for %q", asked)
	}
	for loaded := 100; loaded < many; loaded *= 2 {
		p.click("#more-button")
		p.reads("#count", fmt.Sprint("the first ", loaded))
	}
	p.click("#more-button")
	p.reads("#count", "10000 of 10000")
	p.until("there is nothing more", func() bool { return eval[bool](p, `document.getElementById('more').hidden`) }, "#count")
	if rows := eval[int](p, `document.querySelectorAll('.row').length`); rows == 0 || rows > 100 {
		t.Errorf("%d rows are drawn", rows)
	}
	eval[int](p, `document.getElementById('locks').scrollTop = 1e9`)
	p.until("the last one is seen", func() bool { return strings.Contains(p.text("#rows"), "orders/09999") }, "#count")
	p.write("#search", "0472")
	p.reads("#count", "11 of 10000")
	p.write("#search", "9")
	p.reads("#count", "1 of 10000")
	p.reads("#rows", "orders/04729")
	p.write("#prefix", "orders/047")
	p.reads("#count", "1 of the first 50")
	p.click("#more-button")
	p.reads("#count", "1 of 100")
}

func TestHostileNamesAndNotes(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	p := open(t, s.url)
	for i, text := range []string{
		`<img src=x onerror="window.hacked=1">`, `</bdi><script>window.hacked=1</script>`, `javascript:window.hacked=1`, `a/../b?x=1#/lock/y`,
		`"' onmouseover=window.hacked=1 x="`, `%2e%2e%2f%00`, "back \u202Ewards", "zero\u200Bwidth", "__proto__", "日本 🔒", "event: granted data: {}",
	} {
		s.hold(text, fmt.Sprint("owner-", i), text, minute)
		p.do(chromedp.SetValue(chromedp.CSS("#search"), text))
		eval[bool](p, `document.getElementById('search').dispatchEvent(new Event('input'))`)
		p.reads("#count", "1 of")
		row := strings.NewReplacer("\u202E", `\u{202e}`, "\u200B", `\u{200b}`).Replace(text)
		p.reads(".row .name", row)
		p.click(".row")
		p.reads("#lock-name", row)
		p.reads("#holders .name", row)
		p.click("#lock p a")
	}
	if eval[bool](p, `'hacked' in window`) {
		t.Error("a name was run")
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
	p := open(t, s.url)
	p.reads("#status", "live")
	light := eval[string](p, `getComputedStyle(document.body).backgroundColor`)
	p.click("#language")
	p.reads("#status", "实时")
	p.reads("#contended", "")
	if lang := eval[string](p, `document.documentElement.lang`); lang != "zh-CN" {
		t.Errorf("the language is %q", lang)
	}
	p.do(chromedp.Reload())
	p.reads("#status", "实时") // it is remembered
	p.do(chromedp.EmulateViewport(360, 740))
	dark := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, dark); err != nil {
		t.Fatal(err)
	}
	p.until("it is dark", func() bool { return eval[string](p, `getComputedStyle(document.body).backgroundColor`) != light }, "#status")
	p.reads(".row", "剩余")
	p.picture("page-narrow-dark-zh")
	for _, hash := range []string{"#/", "#/lock/" + strings.Repeat("long", 50)} {
		eval[string](p, fmt.Sprintf(`location.hash = %q`, hash))
		p.reads("#status", "实时")
		if wide := eval[int](p, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
			t.Errorf("%.10s: %d pixels stick out", hash, wide)
		}
	}
	if missing := eval[[]string](p, `[...document.querySelectorAll('[data-word]')].filter((e) => !e.textContent).map((e) => e.dataset.word)`); len(missing) > 0 {
		t.Errorf("no words for %q", missing)
	}
}

func TestKeyboardAlone(t *testing.T) {
	t.Parallel()
	s := serve(t, "memory:", "127.0.0.1:0")
	for i := range 30 {
		s.hold(fmt.Sprintf("key/%02d", i), fmt.Sprint("o", i), "", 10*minute)
	}
	p := open(t, s.url)
	p.reads("#count", "30 of 30")
	p.do(chromedp.KeyEvent("/"))
	p.until("the search has the focus", func() bool { return eval[string](p, `document.activeElement.id`) == "search" }, "#count")
	eval[string](p, `document.getElementById('search').value = ''`) // what is sent here types the key in any case
	p.do(chromedp.KeyEvent("key/"))
	p.do(chromedp.KeyEvent(kb.ArrowDown))
	for range 20 {
		p.do(chromedp.KeyEvent(kb.ArrowDown))
	}
	p.do(chromedp.KeyEvent(kb.Enter))
	p.reads("#lock-name", "key/20")
	p.do(chromedp.KeyEvent(kb.Escape))
	p.reads("#count", "30 of 30")
}
