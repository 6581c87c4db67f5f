package served

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/e2e/described"
	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
)

// locker is of a client at addr.
func locker(t *testing.T, addr string) (*leasehold.Locker, driver.Driver) {
	t.Helper()
	d, err := openAddress("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := leasehold.New(d, &leasehold.Options{TTL: 2 * time.Second, HandOver: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close(); d.Close() })
	return locks, d
}

// TestBlackHoledClient: a client's network swallows everything while it holds, and while another
// call of it waits first in the queue. Its holder believes it lost before the next one holds, and whoever
// waits behind is served.
func TestBlackHoledClient(t *testing.T) {
	t.Parallel()
	s := serve(t, "redis://"+servers.StartRedis(t).Addr())
	p, err := proxy.Listen(strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dark, _ := locker(t, p.Addr())
	darkToo, _ := locker(t, p.Addr())
	light, d := locker(t, strings.TrimPrefix(s.url, "http://"))
	var history locktest.History
	lease, err := dark.Acquire(t.Context(), contended)
	if err != nil {
		t.Fatal(err)
	}
	done := history.Believe(lease)
	var waiting sync.WaitGroup
	wait := func(locks *leasehold.Locker) {
		lease, err := locks.Acquire(t.Context(), contended, leasehold.Wait(time.Minute))
		if err != nil {
			if locks == light {
				t.Errorf("who waits behind a black hole: %v", err)
			}
			return
		}
		defer history.Believe(lease)()
		_ = lease.Release(t.Context()) // what it comes to is the history's business
	}
	waiters := func(n int) {
		t.Helper()
		claimtest.Eventually(t, "the queue", func() bool {
			state, err := d.(driver.Operator).Inspect(t.Context(), contended)
			return err == nil && len(state.Waiters) == n
		})
	}
	waiting.Go(func() { wait(darkToo) })
	waiters(1)
	waiting.Go(func() { wait(light) })
	waiters(2)
	p.Dark()
	<-lease.Context().Done()
	done()
	claimtest.Eventually(t, "the one behind is served", func() bool { return history.Len() >= 2 })
	p.Pass()
	waiting.Wait()
	if err := history.Check(); err != nil {
		t.Error(err)
	}
}

// TestLateRenewal: the lease has ended and another holds. Late calls are told so by every instance,
// and change nothing.
func TestLateRenewal(t *testing.T) {
	t.Parallel()
	s := serve(t, "redis://"+servers.StartRedis(t).Addr())
	var urls []string
	for _, i := range s.instances {
		urls = append(urls, "http://"+described.Balance(t, i.addr()))
	}
	want := func(i int, path, body string, status int) {
		t.Helper()
		if got, a := post(t, urls[i]+path, body); got != status {
			t.Errorf("instance %d, %s %s: %d %s %s, want %d", i, path, body, got, a.Code, a.Error, status)
		}
	}
	want(0, wire.Acquire, `{"name":"n","owner":"first","ttl_ms":500}`, 200)
	want(1, wire.Acquire, `{"name":"n","owner":"second","ttl_ms":60000,"wait_ms":30000}`, 200)
	for i := range s.instances {
		for range 2 {
			want(i, wire.Renew, `{"name":"n","owner":"first","ttl_ms":60000}`, 410)
		}
		want(i, wire.Note, `{"name":"n","owner":"first","note":"mine"}`, 410)
		want(i, wire.Release, `{"name":"n","owner":"first"}`, 410)
		want(i, wire.Renew, `{"name":"n","owner":"second","ttl_ms":60000}`, 200)
		want(i, wire.Evict, `{"name":"n","owner":"first","reason":"late"}`, 410)
	}
	want(0, wire.Acquire, `{"name":"n","owner":"third","ttl_ms":60000}`, 409)
	want(0, wire.Release, `{"name":"n","owner":"second"}`, 200)
	want(1, wire.Renew, `{"name":"n","owner":"second","ttl_ms":60000}`, 410)
}

func post(t *testing.T, url, body string) (status int, a wire.Answer) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, a
}

// TestSilentAndSlowConnections: a thousand connections that send nothing, and some that send headers
// and bodies by the byte, are closed in time, and cost others nothing.
func TestSilentAndSlowConnections(t *testing.T) {
	t.Parallel()
	i := &instance{command: os.Getenv(binaryEnv), store: "memory:", port: servers.FreePorts(t, 1)[0]}
	i.start(t)
	t.Cleanup(i.kill)
	const silent, slow = 1000, 20
	var open sync.WaitGroup
	hold := func(begin, drip string) {
		conn, err := net.Dial("tcp", i.addr())
		if err != nil {
			t.Fatal(err)
		}
		open.Go(func() {
			defer conn.Close()
			if err := isClosed(conn, begin, drip); err != nil {
				t.Errorf("begun with %q: %v", begin, err)
			}
		})
	}
	for range silent {
		hold("", "")
	}
	for range slow {
		hold("POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", "x")
		hold("POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 10000\r\n\r\n", " ")
	}
	gone := make(chan struct{})
	go func() { open.Wait(); close(gone) }()
	for n, beside := 0, true; beside; n++ {
		select {
		case <-gone:
			beside = false
		case <-time.After(20 * time.Millisecond):
		}
		owner := fmt.Sprintf(`{"name":"n","owner":"o%d"`, n)
		if status, a := post(t, "http://"+i.addr()+wire.Acquire, owner+`,"ttl_ms":60000}`); status != 200 {
			t.Fatalf("beside them: %d %s", status, a.Error)
		}
		if status, a := post(t, "http://"+i.addr()+wire.Release, owner+`}`); status != 200 {
			t.Fatalf("beside them: %d %s", status, a.Error)
		}
	}
}

// isClosed sends the beginning and then a drip twice a second, until the other end has closed the
// connection.
func isClosed(conn net.Conn, begin, drip string) error {
	const bound = time.Minute
	_, err := conn.Write([]byte(begin))
	for end := time.Now().Add(bound); err == nil; {
		if time.Now().After(end) {
			return fmt.Errorf("open after %v", bound)
		}
		if err = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
			return err
		}
		if _, err = io.Copy(io.Discard, conn); err == nil {
			return nil // closed
		}
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			_, err = conn.Write([]byte(drip))
		}
	}
	return nil // reset
}

// TestOneOwnerForTwoNames: owners are the callers', and a caller may have one for all its names. What
// is granted, woken and evicted is that of the name all the same.
func TestOneOwnerForTwoNames(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(t *testing.T) string{
		"memory": func(*testing.T) string { return "memory:" },
		"redis":  func(t *testing.T) string { return "redis://" + servers.StartRedis(t).Addr() },
		"postgresql": func(t *testing.T) string {
			return "postgres://postgres@" + servers.StartPostgres(t).Addr() + "/postgres"
		},
		"etcd": func(t *testing.T) string { return "etcd://" + servers.StartEtcd(t, servers.EtcdCurrent).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := &instance{command: os.Getenv(binaryEnv), store: store(t), port: servers.FreePorts(t, 1)[0]}
			i.start(t)
			t.Cleanup(i.kill)
			url := "http://" + described.Balance(t, i.addr())
			for round := range 3 {
				oneOwnerForTwo(t, url, fmt.Sprint("r", round))
			}
		})
	}
}

func oneOwnerForTwo(t *testing.T, url, round string) {
	t.Helper()
	call := func(path, name, rest string) (int, wire.Answer) {
		return post(t, url+path, `{"name":"`+round+"/"+name+`",`+rest+`}`)
	}
	names := []string{"a", "b"}
	granted := make(map[string]chan int)
	for _, name := range names {
		call(wire.Acquire, name, `"owner":"first","ttl_ms":60000`)
		granted[name] = make(chan int, 1)
		go func() {
			status, _ := call(wire.Acquire, name, `"owner":"both","ttl_ms":60000,"wait_ms":20000`)
			granted[name] <- status
		}()
		claimtest.Eventually(t, "a place in the queue", func() bool {
			_, a := call(wire.Acquire, name, `"owner":"looks","ttl_ms":60000`)
			return len(shown(t, url, round+"/"+name).Waiters) == 1 && a.Outcome == wire.Busy
		})
	}
	for n, name := range names {
		other := names[1-n]
		call(wire.Release, name, `"owner":"first"`)
		select {
		case status := <-granted[name]:
			if status != 200 {
				t.Errorf("who waits for %s, which was released: %d", name, status)
			}
		case status := <-granted[other]:
			t.Fatalf("%s was released, and who waits for %s is told %d", name, other, status)
		}
		want := "both"
		if n == 0 { // the other one is held by the first still
			want = "first"
		}
		if h := shown(t, url, round+"/"+other).Holders; len(h) != 1 || h[0].Owner != driver.ShortOwner(want) {
			t.Errorf("%s is held by %v, want %s", other, h, want)
		}
	}
	call(wire.Evict, "a", `"owner":"both","reason":"why"`)
	if status, a := call(wire.Renew, "b", `"owner":"both","ttl_ms":60000`); status != 200 {
		t.Errorf("renew b after a was evicted: %d %v", status, a)
	}
	if status, a := call(wire.Renew, "a", `"owner":"both","ttl_ms":60000`); status != 410 {
		t.Errorf("renew a after it was evicted: %d %v", status, a)
	}
}

func shown(t *testing.T, url, name string) (s wire.State) {
	t.Helper()
	resp, err := http.Get(url + wire.Show + "?name=" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestClientThatDoesNotRead: a client that asks for all locks and does not read the answer is dropped in time.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	i := &instance{command: os.Getenv(binaryEnv), store: "memory:", port: servers.FreePorts(t, 1)[0]}
	i.start(t)
	t.Cleanup(i.kill)
	note := strings.Repeat("n", 1000)
	for n := range 10_000 {
		if status, a := post(t, "http://"+i.addr()+wire.Acquire, fmt.Sprintf(`{"name":"n%d","owner":"o","ttl_ms":600000,"note":%q}`, n, note)); status != 200 {
			t.Fatal(a)
		}
	}
	conn, err := net.Dial("tcp", i.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /v1/locks HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	for end := time.Now().Add(time.Minute); err == nil; time.Sleep(500 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("open after a minute in which nothing was read")
		}
		_, err = io.WriteString(conn, "G") // of the next request
	}
}
