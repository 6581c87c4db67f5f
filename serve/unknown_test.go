package serve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// The log line of an unknown outcome has the call, the lock and the client.
func TestLogOfUnknownOutcomes(t *testing.T) {
	t.Parallel()
	engine := locktest.NewFaulty(memory.NewServer().Connect())
	var log bytes.Buffer // written before the answer and read after it
	s := startOn(t, engine, &serve.Options{
		Log: slog.New(slog.NewJSONHandler(&log, nil)),
		Client: func(*http.Request) (*serve.Client, error) {
			return &serve.Client{Name: "orders", Rules: []serve.Rule{{Rights: []serve.Right{serve.View, serve.Lock, serve.Evict}}}}, nil
		},
	})
	s.post(wire.Acquire, `{"name":"a","owner":"owner","ttl_ms":60000}`).want(t, 200, "")
	for _, call := range []struct {
		op         locktest.Op
		name, body string
	}{
		{locktest.OpTry, "acquire", `{"name":"b","owner":"other","ttl_ms":60000}`},
		{locktest.OpRenew, "renew", `{"name":"a","owner":"owner","ttl_ms":60000}`},
		{locktest.OpNote, "note", `{"name":"a","owner":"owner","note":"x"}`},
		{locktest.OpEvict, "evict", `{"name":"a","owner":"owner"}`},
		{locktest.OpRelease, "release", `{"name":"a","owner":"owner"}`},
	} {
		log.Reset()
		engine.Always(call.op, locktest.LoseRequest)
		s.post("/v1/"+call.name, "%s", call.body)
		engine.Always(call.op, nil)
		var line struct{ Msg, Call, Name, Client, Error string }
		if err := json.Unmarshal(log.Bytes(), &line); err != nil {
			t.Errorf("%s: %v in %q", call.name, err, log.String())
		}
		lock := "a"
		if call.op == locktest.OpTry {
			lock = "b"
		}
		if line.Msg != "unknown outcome" || line.Call != call.name || line.Name != lock || line.Client != "orders" || line.Error == "" {
			t.Errorf("%s: %s", call.name, log.String())
		}
	}
}

// A waiter whose last attempt has no answer may hold: whatever ends its wait, it gets no refusal,
// because its caller would take that for the outcome.
func TestEndOfAWaitDoesNotHideAnUnknownAttempt(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(s bubble){
		"the instance drains":   func(s bubble) { s.Drain() },
		"the waiter is removed": func(s bubble) { go s.post(wire.Remove, `{"name":"n","owner":"o","reason":"r"}`) },
		"a later call comes":    func(s bubble) { go s.post(wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000}`) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				d := locktest.NewFaulty(engine.Connect())
				s, other := newBubble(t, d, nil), newBubble(t, engine.Connect(), nil)
				other.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
				waits := make(chan struct{})
				go func() {
					defer close(waits)
					s.wantCode(wire.CodeUnknown, wire.Acquire, `{"name":"n","owner":"o","ttl_ms":60000,"wait_ms":30000}`)
				}()
				synctest.Wait()
				d.Next(locktest.OpTry, locktest.LoseReply)
				other.want(200, wire.Release, `{"name":"n","owner":"holder"}`)
				synctest.Wait() // it rests after the attempt that was applied
				end(s)
				<-waits
			})
		})
	}
}

// If the store grants nothing for now, a waiter gets no refusal once an attempt had no answer, because
// that attempt may have been granted.
func TestNothingIsGrantedYetAfterAnUnknownAttempt(t *testing.T) {
	t.Parallel()
	const remove = `{"name":"n","owner":"o","reason":"r"}`
	for what, c := range map[string]struct {
		end  func(s bubble)
		code string // of the answer to the waiter; "": it is granted
	}{
		"the wait is over":      {func(bubble) {}, wire.CodeUnknown},
		"the instance drains":   {func(s bubble) { s.Drain() }, wire.CodeUnknown},
		"the waiter is removed": {func(s bubble) { s.want(409, wire.Remove, remove) }, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				d := locktest.NewFaulty(engine.Connect())
				s, other := newBubble(t, d, nil), newBubble(t, engine.Connect(), nil)
				const waits = `{"name":"n","owner":"o","ttl_ms":60000,"wait_ms":20500}`
				other.want(200, wire.Acquire, `{"name":"n","owner":"holder","ttl_ms":60000}`)
				waited := make(chan struct{})
				go func() {
					defer close(waited)
					s.wantCode(c.code, wire.Acquire, waits)
				}()
				synctest.Wait()
				d.Next(locktest.OpTry, locktest.LoseReply)
				other.want(200, wire.Release, `{"name":"n","owner":"holder"}`)
				synctest.Wait() // it rests after the attempt that was applied
				d.Always(locktest.OpTry, func(context.Context, func() error) error { return driver.ErrNotYet })
				time.Sleep(time.Second) // it has tried again
				c.end(s)
				<-waited
				s.wantCode(wire.CodeUnknown, wire.Acquire, waits) // it may hold as before, or holds
				d.Always(locktest.OpTry, nil)
				s.want(200, wire.Acquire, waits)
			})
		})
	}
}

// If the store cannot say yet whether an owner has a lease, the owner gets no refusal, because it may
// hold by an earlier call.
func TestLookForALeaseThatCannotBeAnsweredYet(t *testing.T) {
	t.Parallel()
	for what, op := range map[string]locktest.Op{"the renewal": locktest.OpRenew, "the look at the mode": locktest.OpInspect} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := memory.NewServer()
				d := locktest.NewFaulty(engine.Connect())
				s, other := newBubble(t, d, nil), newBubble(t, engine.Connect(), nil)
				const acquire = `{"name":"n","owner":"o","ttl_ms":60000}`
				other.want(200, wire.Acquire, acquire)
				d.Always(op, func(context.Context, func() error) error { return driver.ErrNotYet })
				s.wantCode(wire.CodeUnknown, wire.Acquire, acquire)
				d.Always(op, nil)
				s.want(200, wire.Acquire, acquire)
			})
		})
	}
}
