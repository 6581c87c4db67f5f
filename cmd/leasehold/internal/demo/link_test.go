package demo

import (
	"bufio"
	"database/sql"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/stores"
)

func TestHostsAreFoundInURLs(t *testing.T) {
	for rest, want := range map[string][]string{
		"//h":                       {"//", "h", ""},
		"//h:1/0?prefix=a,b":        {"//", "h:1", "/0?prefix=a,b"},
		"//u:p@x@h1,h2:2,[::1]:3/x": {"//u:p@x@", "h1", "h2:2", "[::1]:3", "/x"},
		"//h1,h2?x=y@z":             {"//", "h1", "h2", "?x=y@z"},
	} {
		before, hosts, after := hostsOf(rest)
		if got := append(append([]string{before}, hosts...), after); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", rest, got, want)
		}
	}
}

func TestTLSServersKeepTheirNames(t *testing.T) {
	for _, c := range []struct{ scheme, host, rest, want string }{
		{"redis", "h:1", "/0", "/0"}, {"rediss", "h:1", "/0", "/0?server_name=h"}, {"redis", "h", "?ca_file=x", "?ca_file=x&server_name=h"},
		{"etcds", "[::1]:1", "", "?server_name=%3A%3A1"}, {"rediss", "h", "?server_name=x", "?server_name=x"},
	} {
		if got := withServerName(c.scheme, c.host, c.rest); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// echo is a server that repeats lines.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for in := bufio.NewReader(c); ; {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					c.Write([]byte(line))
				}
			}()
		}
	}()
	return l.Addr().String()
}

func TestCutLinkHoldsWhatArrives(t *testing.T) {
	l, err := newLink("redis://user@" + echo(t) + "/0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	host, ok := strings.CutPrefix(l.url(), "redis://user@")
	host, path := host[:len(host)-2], host[len(host)-2:]
	if !ok || path != "/0" {
		t.Fatalf("URL %s", l.url())
	}
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	say := func(line string) { conn.Write([]byte(line)) }
	hear := func(bound time.Duration) (string, error) {
		conn.SetReadDeadline(time.Now().Add(bound))
		return in.ReadString('\n')
	}
	hears := func(line string) {
		t.Helper()
		if got, err := hear(20 * time.Second); got != line {
			t.Fatalf("heard %q, %v; want %q", got, err, line)
		}
	}
	say("one\n")
	hears("one\n")
	l.cut(time.Second)
	say("two\n")
	if got, err := hear(300 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %q, %v through a cut link", got, err)
	}
	l.mend()
	hears("two\n")
	say("three\n")
	hears("three\n")
}

func TestCutFileTakesNoWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	l, err := newLink("sqlite:" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	db, err := sql.Open("sqlite", strings.ReplaceAll(sqliteDSN(path), "10000", "200")) // milliseconds
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	write := func() error {
		_, err := db.Exec(`CREATE TABLE IF NOT EXISTS n (n INTEGER)`)
		return err
	}
	if err := l.cut(time.Hour); err != nil {
		t.Fatal(err)
	}
	if write() == nil {
		t.Error("a write got through")
	}
	l.mend()
	if err := write(); err != nil {
		t.Error(err)
	}
	l.cut(time.Millisecond) // it mends by itself
	for end := time.Now().Add(20 * time.Second); write() != nil; {
		if time.Now().After(end) {
			t.Fatal("never mended")
		}
	}
}

func TestLinkToServersThatTellOthersIsRefused(t *testing.T) {
	for _, url := range []string{"redis+sentinel://h/m", "redis+cluster://h", "kubernetes://ns", "s3://b/p?region=r", "s3://b?endpoint=https://h", "s3://b?endpoint=%zz"} {
		if _, err := newLink(url); !errors.Is(err, ErrSettings) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestWrongShopsAreRefusedWithoutRepeatingThem(t *testing.T) {
	const canary = "s3cr3t-canary"
	for _, url := range []string{
		canary, "sqlite:/tmp/" + canary, "nosuch://u:" + canary + "@h/", "mysql:" + canary, "postgres://u:" + canary + "@%zz:x/", "mysql://u:" + canary + "@h/db?x=y",
	} {
		_, err := createBooks(t.Context(), url, t.TempDir())
		if !errors.Is(err, stores.ErrURL) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"mysql://u:" + canary + "@127.0.0.1:1/db", "postgres://u:" + canary + "@127.0.0.1:1/db"} {
		_, err := createBooks(t.Context(), url, t.TempDir())
		if err == nil || errors.Is(err, stores.ErrURL) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestParametersAreNumberedForPostgres(t *testing.T) {
	if got := (&books{dialect: fence.Postgres}).text("a = ? AND b = ?"); got != "a = $1 AND b = $2" {
		t.Errorf("got %s", got)
	}
}
