package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// With --limit a list ends there, and --after goes on, until nothing is left.
func TestListGoesOnWithAfter(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprintf("page/%d", i))
		c.acquire(want[i])
	}
	c.acquire("other")
	var got []string
	args := []string{"ls", "--json", "--limit", "2", "page/"}
	for next := "first"; next != ""; {
		o := c.want(0, args...)
		var views []stateView
		o.json(t, &views)
		if len(views) > 2 {
			t.Errorf("%q lists %d locks", args, len(views))
		}
		for _, v := range views {
			got = append(got, v.Name)
		}
		var e event
		if o.stderr != "" {
			if err := json.Unmarshal([]byte(o.stderr), &e); err != nil || e.Kind != onMore {
				t.Fatalf("%q says %q: %v", args, o.stderr, err)
			}
		}
		next = e.Next
		args = append(args[:5:5], "--after", next)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("all pages: %q, want %q", got, want)
	}
	o := c.want(0, "ls", "--limit", "5")
	contains(t, o.stderr, "there may be more: go on with --after ")
	_, next, _ := strings.Cut(strings.TrimSpace(o.stderr), "--after ")
	if o := c.want(0, "ls", "--after", next); strings.Count(o.stdout, "\n") != 2 || !strings.Contains(o.stdout, "page/4") || o.stderr != "" {
		t.Errorf("after %s: %q, %q", next, o.stdout, o.stderr)
	}
	if o := c.want(0, "ls", "--limit", "6"); o.stderr != "" {
		t.Errorf("of all: %q", o.stderr)
	}
	for _, args := range []string{"--limit 0", "--limit -1", "--after !", "--watch --limit 1", "--watch --after x"} {
		c.want(exitUsage, append([]string{"ls"}, strings.Fields(args)...)...)
	}
}

// A list is printed as it comes, and whole lines of it, whatever ends it.
func TestListIsPrintedAsItComes(t *testing.T) {
	t.Parallel()
	served, err := serve.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	asked, left := make(chan bool, 10), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/v1/locks":
			served.ServeHTTP(w, r)
		case r.URL.Query().Get("after") == "":
			w.Header().Set("Content-Type", "application/json")
			var locks []string
			for i := range 500 {
				locks = append(locks, fmt.Sprintf(`{"name":"n/%03d","token":"1024","holders":[{"owner":"o","handle":"o","mode":"exclusive","token":"1024"}],"waiters":[]}`, i))
			}
			fmt.Fprintf(w, `{"locks":[%s],"next":"more"}`, strings.Join(locks, ","))
		default:
			asked <- true
			select { // it does not answer
			case <-r.Context().Done():
			case <-left:
			}
		}
	}))
	defer s.Close()
	defer close(left)
	for _, args := range [][]string{{"ls"}, {"ls", "--json"}} {
		cmd := exec.Command(binary, append([]string{"--store", s.URL}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		var text strings.Builder
		for !strings.Contains(text.String(), "n/499") { // while the second page is asked for
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%q: %v after %q", args, err, text.String())
			}
			text.WriteString(line)
		}
		<-asked
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(lines)
		text.Write(rest)
		_ = cmd.Wait()
		if code := shellCode(cmd.ProcessState); code != exitSignal+int(syscall.SIGINT) {
			t.Errorf("%q: exit code %d", args, code)
		}
		if len(args) == 1 && strings.Count(text.String(), "\n") != 501 {
			t.Errorf("%q prints %d lines", args, strings.Count(text.String(), "\n"))
		}
		if len(args) > 1 && json.Valid([]byte(text.String())) {
			t.Errorf("%q prints an array that looks whole", args)
		}
	}
}
