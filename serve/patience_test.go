package serve_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// The time that it takes to identify the caller is no part of wait_ms.
func TestWaitBeginsOnceTheCallerIsKnown(t *testing.T) {
	t.Parallel()
	var known atomic.Pointer[time.Time]
	s := start(t, memory.NewServer(), &serve.Options{Client: func(*http.Request) (*serve.Client, error) {
		time.Sleep(300 * time.Millisecond)
		known.Store(new(time.Now()))
		return &serve.Client{Name: "orders", Rules: []serve.Rule{{Rights: []serve.Right{serve.Lock}}}}, nil
	}})
	s.post(wire.Acquire, `{"name":"a","owner":"holder","ttl_ms":60000}`).want(t, 200, "")
	s.post(wire.Acquire, `{"name":"a","owner":"other","ttl_ms":60000,"wait_ms":250}`).want(t, 409, wire.CodeBusy)
	if waited := time.Since(*known.Load()); waited < 250*time.Millisecond {
		t.Errorf("refused %v after the caller was known; want 250ms or more", waited)
	}
}
