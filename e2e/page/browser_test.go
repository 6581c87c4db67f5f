package page

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/leasehold-go/leasehold/e2e/program"
)

const (
	// patience is what is waited for something to be seen, on a busy machine.
	patience = 30 * time.Second
	// glance is the time between two looks at a page, each of which costs the browser and the test a millisecond or so.
	glance = 50 * time.Millisecond
)

var (
	binary  string
	browser context.Context
)

func TestMain(m *testing.M) {
	path := chromium()
	if path == "" {
		fmt.Fprintln(os.Stderr, "Chromium is missing: scripts/install-tools chromium")
		os.Exit(1)
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.Flag("lang", "en-US"), chromedp.Flag("disable-gpu", true), chromedp.WSURLReadTimeout(2*time.Minute))
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, end := chromedp.NewContext(alloc)
	browser = ctx
	code := 1
	if err := chromedp.Do(ctx); err != nil { // starts it
		fmt.Fprintln(os.Stderr, "start Chromium:", err)
	} else {
		code = program.Main(m, &binary)
	}
	end()
	cancel()
	os.Exit(code)
}

// chromium returns the path of the browser. The headless shell, which is the same engine without windows, takes about
// half the processor time.
func chromium() string {
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// A service is a process of "leasehold serve".
type service struct {
	t     *testing.T
	url   string
	token string
	cmd   *exec.Cmd
}

func serve(t *testing.T, store, listen string, flags ...string) *service {
	t.Helper()
	said := &lines{found: make(chan string, 1)}
	cmd := exec.Command(binary, append([]string{"--store", store, "serve", "--listen", listen}, flags...)...)
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, cmd: cmd}
	t.Cleanup(s.kill)
	select {
	case s.url = <-said.found:
	case <-time.After(patience):
		t.Fatal("the service does not start")
	}
	return s
}

func (s *service) kill() {
	_ = s.cmd.Process.Kill() // it may be gone
	_ = s.cmd.Wait()         // it was killed
}

func (s *service) address() string { return strings.TrimPrefix(s.url, "http://") }

// lines waits for the line that tells the address.
type lines struct {
	text  bytes.Buffer
	found chan string
}

func (l *lines) Write(p []byte) (int, error) {
	l.text.Write(p)
	if url := regexp.MustCompile(`(http://[^\s"]+)"?[^\n]*\n`).FindSubmatch(l.text.Bytes()); url != nil {
		select {
		case l.found <- string(url[1]):
		default:
		}
	}
	return len(p), nil
}

// post makes a call and returns its status.
func (s *service) post(call string, fields map[string]any) (status int) {
	s.t.Helper()
	status, err := s.try(call, fields)
	if err != nil {
		s.t.Fatalf("%s %v: %v", call, fields, err)
	}
	return status
}

func (s *service) try(call string, fields map[string]any) (status int, err error) {
	body, err := json.Marshal(fields)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequest(http.MethodPost, s.url+"/v1/"+call, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// hold takes a lease.
func (s *service) hold(name, owner, note string, ttl time.Duration) {
	s.t.Helper()
	if status := s.post("acquire", map[string]any{"name": name, "owner": owner, "note": note, "ttl_ms": ttl.Milliseconds()}); status != 200 {
		s.t.Fatalf("acquire %q: %d", name, status)
	}
}

func (s *service) renew(name, owner string, ttl time.Duration) {
	s.t.Helper()
	if status := s.post("renew", map[string]any{"name": name, "owner": owner, "ttl_ms": ttl.Milliseconds()}); status != 200 {
		s.t.Fatalf("renew %q: %d", name, status)
	}
}

// A tab is what a person sees.
type tab struct {
	t   *testing.T
	ctx context.Context
}

func open(t *testing.T, url string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil { // the tab lives as long as this context
		t.Fatal(err)
	}
	p := &tab{t, ctx}
	p.do(chromedp.EmulateViewport(1200, 800), chromedp.Navigate(url))
	return p
}

func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

func run[T any](p *tab, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

// eval is a value of the page.
func eval[T any](p *tab, js string) (v T) {
	p.t.Helper()
	return run(p, chromedp.Evaluate[T](js))
}

// text is what a person reads of an element: nothing while the page loads anew, as after the sign-in.
func (p *tab) text(selector string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](fmt.Sprintf(`(() => { const e = document.querySelector(%q); return e && e.checkVisibility() ? e.innerText : '' })()`, selector)))
	if err != nil && !strings.Contains(err.Error(), "Inspected target navigated") {
		p.t.Fatal(err)
	}
	return text
}

// reads waits until an element's text has a part.
func (p *tab) reads(selector, want string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%s reads %q", selector, want), func() bool { return strings.Contains(p.text(selector), want) }, selector)
}

// stays looks on for some answers, in which an element's text is to stay.
func (p *tab) stays(selector, want string) {
	p.t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(glance) {
		if text := p.text(selector); text != want {
			p.t.Fatalf("%s reads %q, not %q", selector, text, want)
		}
	}
}

func (p *tab) until(what string, seen func() bool, shows string) {
	p.t.Helper()
	for end := time.Now().Add(patience); !seen(); time.Sleep(glance) {
		if time.Now().After(end) {
			p.t.Fatalf("never: %s, it reads %q", what, p.text(shows))
		}
	}
}

// before runs a script in the pages that are opened from here on, before their own.
func (p *tab) before(js string) {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: js}); err != nil {
		p.t.Fatal(err)
	}
}

// sees is how a person's screen is: its size, and whether it is dark.
func (p *tab) sees(width, height int64, dark bool) {
	p.t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	p.do(chromedp.EmulateViewport(width, height))
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, media); err != nil {
		p.t.Fatal(err)
	}
}

func (p *tab) click(selector string) {
	p.t.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector)))
}

func (p *tab) write(selector, text string) {
	p.t.Helper()
	p.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// picture writes what is seen to a file of docs/images, if pictures are wanted.
func (p *tab) picture(name string) {
	p.t.Helper()
	if !*pictures {
		return
	}
	png := run(p, chromedp.CaptureScreenshot())
	err := os.MkdirAll("../../docs/images", 0o755)
	if err = errors.Join(err, os.WriteFile("../../docs/images/"+name+".png", png, 0o644)); err != nil {
		p.t.Fatal(err)
	}
}
