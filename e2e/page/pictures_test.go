package page

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// The six pictures of docs/images.
func TestPictures(t *testing.T) {
	t.Parallel()
	if !*pictures {
		t.Skip("go test ./page -pictures makes them")
	}
	s := newScene(t, 5*time.Second, 4*time.Minute)
	p := s.open()
	at := func(view, shows, text string) {
		t.Helper()
		eval[string](p, fmt.Sprintf(`location.hash = %q`, view))
		p.until("all is loaded", func() bool { return p.text(".loading") == "" }, "#console")
		p.reads(shows, text)
		p.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, 1, 1))
		eval[bool](p, `(document.activeElement?.blur(), scrollTo(0, 0), true)`)
	}
	late := func() { // for a minute and a half from here on
		t.Helper()
		end := time.Now().Add(5 * time.Minute)
		for eval[string](p, `location.hash = '#/lock/deploy%2Fproduction'`); p.text("#lock-state") != "at risk" && time.Now().Before(end); time.Sleep(time.Second) {
		}
	}
	late()
	p.sees(1440, 900, false)
	at("#/", ".figure:nth-child(4) .value", "1")
	p.picture("console-overview")
	at("#/locks", ".row .badge.is-late", "at risk")
	p.picture("console-locks")
	p.sees(1440, 1024, true)
	at("#/lock/deploy%2Fproduction?range=5m", "#lock-state", "at risk")
	p.reads("#waiters tbody tr:nth-child(7)", "gitlab 88130") // a busy machine has some lose their places
	p.picture("console-lock-dark")
	p.sees(1024, 860, false)
	p.click("#holders .evict")
	p.write("dialog [name=reason]", "its runner is gone")
	p.write("dialog [name=typed]", "deploy/production")
	p.picture("console-evict")
	p.click("dialog .no")
	p.click("#language")
	p.sees(390, 844, true)
	at("#/locks?sort=waiting&dir=desc", ".row", "有风险")
	p.picture("console-narrow-dark-zh")
	p.click("#language")
	p.sees(1440, 600, false)
	at("#/locks?sort=waiting&dir=desc", ".row", "deploy/production")
	eval[bool](p, `(window.fetch = () => Promise.reject(new Error('the network is gone')), true)`)
	p.reads("#status", "no answer for 12 s")
	p.picture("console-unknown")
}

// walk writes every screen to a folder, for who looks at all of them: go test ./page -run EveryScreen -walk FOLDER
var walk = flag.String("walk", "", "write every screen to this `folder`")

// Every screen in each language, at three widths, light and dark.
func TestEveryScreen(t *testing.T) {
	t.Parallel()
	if *walk == "" {
		t.Skip("-walk FOLDER writes them")
	}
	s := newScene(t, time.Second, 60*time.Second)
	empty := serve(t, "memory:", "127.0.0.1:0")
	for _, chinese := range []bool{false, true} {
		w := walker{t: t, chinese: chinese}
		p := w.opens(s.open())
		p.screens()
		p.dialogs()
		for _, broken := range []struct{ name, fetch string }{
			{"loading", `() => new Promise(() => {})`},
			{"down", `() => Promise.resolve(new Response('{"outcome":"unknown","error":"the store does not answer"}', { status: 503 }))`},
			{"refused", `() => Promise.resolve(new Response('{"outcome":"refused"}', { status: 403 }))`},
		} {
			p := w.opens(s.open())
			p.before(`window.fetch = ` + broken.fetch)
			p.do(chromedp.Reload())
			for _, view := range []string{"#/", "#/locks", "#/lock/deploy%2Fproduction", "#/events", "#/me"} {
				p.goes(view, broken.name)
			}
		}
		for _, view := range []string{"#/", "#/locks", "#/lock/deploy%2Fproduction", "#/events", "#/me"} {
			p.shows(view)
			eval[bool](p.tab, `(window.asks = window.fetch, window.fetch = () => Promise.reject(new Error('the network is gone')), true)`)
			p.until("it is stale", func() bool { return p.text(".stale") != "" }, "#console")
			p.takes("stale-" + nameOf(view))
			eval[bool](p.tab, `(window.fetch = window.asks, true)`)
			p.until("it is fresh", func() bool { return p.text(".stale") == "" }, "#console")
		}
		none := w.opens(open(t, empty.url))
		for _, view := range []string{"#/", "#/locks", "#/lock/deploy%2Fproduction", "#/events", "#/me"} {
			none.goes(view, "empty")
		}
		sign := w.opens(open(t, s.url))
		sign.takes("sign-in")
		sign.write("#bearer", "of somebody else")
		sign.click("#sign-in .main")
		sign.until("it is wrong", func() bool { return sign.text("#sign-in .bad") != "" }, "#sign-in")
		sign.takes("sign-in-wrong")
	}
}

// A walker takes pictures of a tab.
type walker struct {
	t *testing.T
	*tab
	chinese bool
}

func (w walker) opens(p *tab) walker {
	w.tab = p
	if eval[bool](p, `document.documentElement.lang.startsWith('zh')`) != w.chinese { // it is remembered
		p.click("#language")
	}
	return w
}

func nameOf(view string) string {
	return strings.NewReplacer("#/", "", "/", "-", "%2F", "-", "?", "-", "=", "-", "&", "-").Replace(view + map[bool]string{true: "overview"}[view == "#/"])
}

// takes takes six pictures of what is shown.
func (w walker) takes(name string) {
	w.t.Helper()
	language := map[bool]string{false: "en", true: "zh"}[w.chinese]
	for _, width := range []int64{1440, 1024, 390} {
		for _, dark := range []bool{false, true} {
			w.sees(width, 900, dark)
			time.Sleep(100 * time.Millisecond) // for what follows the width
			if wide := eval[int](w.tab, `document.documentElement.scrollWidth`); int64(wide) > width {
				w.t.Errorf("%s in %s is %d wide at %d", name, language, wide, width)
			}
			theme := map[bool]string{false: "light", true: "dark"}[dark]
			file := filepath.Join(*walk, fmt.Sprintf("%s.%s.%d.%s.png", name, language, width, theme))
			if err := os.WriteFile(file, run(w.tab, chromedp.FullScreenshot(100)), 0o644); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func (w walker) shows(view string) {
	w.t.Helper()
	eval[string](w.tab, fmt.Sprintf(`location.hash = %q`, view))
	time.Sleep(3 * time.Second) // for a second look
	w.until("all is loaded", func() bool { return w.text(".loading") == "" }, "#console")
	eval[bool](w.tab, `(document.activeElement?.blur(), true)`)
}

func (w walker) goes(view, state string) {
	w.t.Helper()
	eval[string](w.tab, fmt.Sprintf(`location.hash = %q`, view))
	time.Sleep(time.Second)
	w.takes(state + "-" + nameOf(view))
}

func (w walker) screens() {
	w.t.Helper()
	for _, view := range append(views, "#/locks?q=nothing-has-this-name", "#/locks?sort=held&dir=desc&host=web-1&state=held", "#/events?kind=expired,evicted", "#/events?until=2026-01-01T00:00:00Z") {
		w.shows(view)
		w.takes(nameOf(view))
	}
}

// dialogs takes each dialog, and what it says when it may not.
func (w walker) dialogs() {
	w.t.Helper()
	for _, dialog := range []struct{ name, view, opens string }{
		{"evict", "#/lock/deploy%2Fproduction", "#holders .evict"}, {"remove", "#/lock/deploy%2Fproduction", "#waiters .remove"},
		{"reserve", "#/lock/deploy%2Fproduction", "#reserve"}, {"reserve-name", "#/locks", "#reserve"},
		{"reset", "#/lock/cron%2Fdaily-report", "#reset"}, {"limit", "#/lock/tenant%2F7", "#limit"},
	} {
		w.shows(dialog.view)
		w.click(dialog.opens)
		w.takes("dialog-" + dialog.name)
		w.click("dialog .no")
	}
	w.shows("#/lock/walked%2Fname")
	w.click("#reserve")
	w.write("dialog [name=reason]", "a walk through the console")
	w.click("dialog .yes")
	w.until("it is reserved", func() bool { return w.text("dialog .owner code") != "" }, "dialog")
	w.takes("dialog-reserved")
	w.click("dialog .no")
	w.until("it may be released", func() bool { return w.text(".release") != "" }, "#console")
	w.takes("lock-walked-own")
	w.click(".release")
	w.takes("dialog-release")
	w.click("dialog .yes")
	w.until("it is released", func() bool { return w.text(".release") == "" && w.text("dialog") == "" }, "#console")
}

// axe-core finds nothing that would keep people out of a view.
func TestNothingKeepsPeopleOut(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(servers.Axe(t))
	if err != nil {
		t.Fatal(err)
	}
	axe := string(text)
	s := newScene(t, 100*time.Millisecond, 20*time.Second)
	p := s.open()
	find := func(what string) {
		t.Helper()
		p.until("nothing moves", func() bool { return !eval[bool](p, `document.getAnimations().length > 0`) }, "#console")
		if !eval[bool](p, `'axe' in window`) { // half a megabyte, which the page keeps
			eval[bool](p, axe+"; true")
		}
		for _, found := range run(p, chromedp.Evaluate[[]string](`axe.run(document).then((r) => r.passes.length < 10 ? ['it looked at little'] : r.violations.flatMap((v) => v.nodes.map((n) => v.id + ' ' + n.target.join() + ': ' + n.any.concat(n.all).map((c) => c.message).join())))`, chromedp.EvalAwaitPromise)) {
			t.Errorf("%s: %s", what, found)
		}
	}
	for _, dark := range []bool{false, true} {
		for _, width := range []int64{1440, 390} {
			if testing.Short() && dark == (width == 1440) { // each once is enough: a look takes processor time
				continue
			}
			p.sees(width, 900, dark)
			for _, view := range views {
				eval[string](p, fmt.Sprintf(`location.hash = %q`, view))
				p.until(view+" is shown", func() bool { return p.text("h1") != "" && p.text(".loading") == "" }, "#console")
				find(fmt.Sprint(view, " at ", width, " dark ", dark))
			}
			eval[string](p, `location.hash = '#/lock/deploy%2Fproduction'`)
			p.reads("#lock-state", "at risk") // as it is for nine of twenty seconds
			p.click("#holders .evict")
			find(fmt.Sprint("the dialog at ", width, " dark ", dark))
			p.click("dialog .no")
		}
	}
	p.click("#language")
	find("in Chinese")
	eval[bool](p, `(window.fetch = () => Promise.reject(new Error('no answer')), true)`)
	p.reads("#status", "状态未知")
	for _, dark := range []bool{false, true} {
		p.sees(1440, 900, dark)
		find(fmt.Sprint("what is stale, dark ", dark))
	}
}
