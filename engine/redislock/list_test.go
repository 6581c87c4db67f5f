package redislock_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/serve"
)

// foreign sets the lock keys of n names, as another client does.
func foreign(t *testing.T, client *redis.Client, prefix string, n int) (names []string) {
	t.Helper()
	pipe := client.Pipeline()
	for i := range n {
		names = append(names, fmt.Sprintf("%s%05d", prefix, i))
		pipe.Set(t.Context(), "lock:"+names[i], "somebody", time.Hour)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	return names
}

// listed reads the pages behind a cursor, and returns their names and number.
func listed(t *testing.T, d *redislock.Driver, prefix, after string, limit int) (names []string, pages int) {
	t.Helper()
	for {
		states, next, err := d.List(t.Context(), prefix, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range states {
			names = append(names, st.Resource)
		}
		if pages++; len(next) > 4000 {
			t.Errorf("a cursor of %d bytes", len(next))
		}
		if after = next; after == "" {
			slices.Sort(names)
			return slices.Compact(names), pages
		}
	}
}

// A cursor is of one process of Redis: another one, as after a restart or a failover, has its keys in another
// order, and all of it is looked at.
func TestRedisListGoesOnAtAnotherServer(t *testing.T) {
	t.Parallel()
	first, second := servers.StartRedis(t), servers.StartRedis(t)
	var want []string
	for _, r := range []*servers.Redis{first, second} {
		want = foreign(t, redisClient(t, r), "n/", 2000)
	}
	before, after := redisDriverOf(t, redisClient(t, first), nil), redisDriverOf(t, redisClient(t, second), nil)
	cursor := ""
	for range 10 { // half of them
		var err error
		if _, cursor, err = before.List(t.Context(), "n/", cursor, 100); err != nil || cursor == "" {
			t.Fatalf("a page: %q, %v", cursor, err)
		}
	}
	if got, _ := listed(t, after, "n/", cursor, 100); !slices.Equal(got, want) {
		t.Errorf("%d of %d names are listed", len(got), len(want))
	}
}

// A page costs what it shows, and a list a script for each 25 names: none holds the server up for long.
func TestRedisListAsksForManyNamesAtOnce(t *testing.T) {
	t.Parallel()
	r := servers.StartRedis(t)
	client := redisClient(t, r)
	const many = 5000
	want := foreign(t, client, "n/", many)
	few := foreign(t, client, "seldom/", 3)
	d := redisDriverOf(t, client, nil)
	calls := func(command string) int {
		text := client.Info(t.Context(), "commandstats").Val()
		found := regexp.MustCompile(`cmdstat_` + command + `:calls=(\d+)`).FindStringSubmatch(text)
		if found == nil {
			return 0
		}
		n, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, _, err := d.List(t.Context(), "", "", 50); err != nil { // which loads the script
		t.Fatal(err)
	}
	r.Must(t, "CONFIG", "RESETSTAT")
	if states, next, err := d.List(t.Context(), "", "", 50); err != nil || len(states) < 25 || len(states) > 50 || next == "" {
		t.Errorf("a page of 50 has %d, and then %q, %v", len(states), next, err)
	}
	if scans, scripts, looked := calls("scan"), calls("evalsha"), calls("mget"); scans > 8 || scripts > 2 || looked > 2 {
		t.Errorf("a page of 50 takes %d scans and %d scripts with %d reads", scans, scripts, looked)
	}
	r.Must(t, "CONFIG", "RESETSTAT")
	if got, _ := listed(t, d, "n/", "", 500); !slices.Equal(got, want) {
		t.Errorf("%d of %d names are listed", len(got), many)
	}
	if scripts, scans := calls("evalsha"), calls("scan"); scripts > many/10 || scripts < many/50 || scans > many/20 {
		t.Errorf("a list of %d takes %d scans and %d scripts", many, scans, scripts)
	}
	got, pages := listed(t, d, "seldom/", "", 50)
	if !slices.Equal(got, few) || pages > 5 {
		t.Errorf("%q on %d pages, want %q", got, pages, few)
	}
}

// A cursor stays short enough for a URL, whatever it carries, and each name comes.
func TestRedisListOfLongNames(t *testing.T) {
	t.Parallel()
	client := redisClient(t, servers.StartRedis(t))
	want := foreign(t, client, strings.Repeat("long", 120), 700)
	d := redisDriverOf(t, client, nil)
	for _, limit := range []int{1, 7, 50} {
		got, _ := listed(t, d, "", "", limit)
		if !slices.Equal(got, want) {
			t.Errorf("by %d: %d of %d names", limit, len(got), len(want))
		}
	}
}

// A cursor may come from someone who must not see all names. One that carries other names than the
// prefix allows is an error, or lists none of them: by the driver, by a majority, and by the service.
func TestRedisListChecksTheNamesOfACursor(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 3)
	for _, n := range nodes {
		client := redisClient(t, n)
		foreign(t, client, "ci/", 1)
		foreign(t, client, "payroll/", 1)
	}
	single, majority := redisDriverOf(t, redisClient(t, nodes[0]), nil), openRedlock(t, nodes, -1)
	secret := base64.RawURLEncoding.EncodeToString([]byte(`{"n":["payroll/00000"]}`))
	for d, after := range map[driver.Driver]string{single: secret, majority: "0.0." + secret} {
		states, _, err := d.(driver.Operator).List(t.Context(), "ci/", after, 10)
		if d == single && err == nil || slices.ContainsFunc(states, func(st driver.State) bool { return st.Resource != "ci/00000" }) {
			t.Errorf("%T: after %q: %v, %v", d, after, states, err)
		}
		s, err := serve.New(d, &serve.Options{Client: func(*http.Request) (*serve.Client, error) {
			return &serve.Client{Name: "ci", Rules: []serve.Rule{{Prefix: "ci/", Rights: []serve.Right{serve.View}}}}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		w := httptest.NewRecorder()
		after = base64.RawURLEncoding.EncodeToString([]byte("ci/\x00" + after))
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, wire.List+"?after="+after, nil))
		if strings.Contains(w.Body.String(), "payroll") {
			t.Errorf("%T: the service answers %d %s", d, w.Code, w.Body)
		}
	}
	for _, name := range []string{"ci/\x1fq", "ci/\n"} {
		after, _ := json.Marshal(map[string]any{"n": []string{name}})
		if states, _, err := single.List(t.Context(), "ci/", base64.RawURLEncoding.EncodeToString(after), 10); err == nil {
			t.Errorf("a cursor with %q: %v", name, states)
		}
	}
}

// What is no cursor is an error.
func TestRedisListRefusesOtherCursors(t *testing.T) {
	t.Parallel()
	d := redisDriverOf(t, redisClient(t, servers.StartRedis(t)), nil)
	for _, after := range []string{"%", "e", "bm8", " "} {
		if states, next, err := d.List(t.Context(), "", after, 10); err == nil {
			t.Errorf("after %q: %v, %q", after, states, next)
		}
	}
}
