package serve_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// dials is a listener for net.Pipe, whose deadlines are of a bubble's clock.
type dials chan net.Conn

func (d dials) Accept() (net.Conn, error) {
	if c, ok := <-d; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (d dials) Close() error   { return nil }
func (d dials) Addr() net.Addr { return &net.TCPAddr{} }

// send sends the beginning of a request to the service.
func (b bubble) send(text string) net.Conn {
	b.t.Helper()
	d := make(dials, 1)
	web := &http.Server{Handler: b}
	go web.Serve(d)
	c, served := net.Pipe()
	d <- served
	b.t.Cleanup(func() { c.Close(); close(d); web.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		b.t.Fatal(err)
	}
	return c
}

// bodyWithin is the bound of docs/serve.md.
const bodyWithin = 10 * time.Second

// A body that does not come holds no connection for longer than the bound, whoever calls what.
func TestBodiesThatDoNotCome(t *testing.T) {
	t.Parallel()
	nobody := &serve.Options{Client: func(*http.Request) (*serve.Client, error) { return nil, serve.ErrUnknownClient }}
	for call, opts := range map[string]*serve.Options{
		"POST /v1/acquire": nil, "POST /v1/renew": nobody, "DELETE /v1/acquire": nil, "POST /v1/acquire?x=1": nil,
		"POST /v1/nothing": nil, "GET /healthz": nobody, "GET /v1/locks": nil, "GET /v1/events": nil,
	} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, began := newBubble(t, memory.New(), opts), time.Now()
				conn := b.send(call + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n")
				conn.SetReadDeadline(began.Add(time.Minute))
				answer, err := io.ReadAll(conn)
				if took := time.Since(began); err != nil || took > bodyWithin+time.Second {
					t.Errorf("after %v: %v, answered %.100q", took, err, answer)
				}
			})
		})
	}
}

// Once the body has come, its bound ends neither a stream nor a wait.
func TestBoundOfABodyEndsWithIt(t *testing.T) {
	t.Parallel()
	const acquire = `{"name":"n","owner":"b","ttl_ms":60000,"wait_ms":25000}`
	for call, body := range map[string]string{"GET /v1/events": "{}", "POST /v1/acquire": acquire} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, memory.New(), nil)
				b.want(200, "/v1/acquire", `{"name":"n","owner":"a","ttl_ms":60000}`)
				conn := b.send(fmt.Sprintf("%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
					call, len(body), body))
				conn.SetReadDeadline(time.Now().Add(2 * bodyWithin))
				if answer, err := io.ReadAll(conn); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("ended with %v after %.300q", err, answer)
				}
			})
		})
	}
}
