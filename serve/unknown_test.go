package serve_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"testing"

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
