package httplock_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// asked is an engine that notes whether the last claim that asks for others is content with one notice.
type asked struct {
	*memory.Driver
	once *atomic.Bool
}

func (d asked) Claim(req driver.Request) (driver.Claim, error) {
	if req.Wanted != nil {
		d.once.Store(req.WantedOnce)
	}
	return d.Driver.Claim(req)
}

// The engine learns that one notice is enough, from the instance that grants and from one that renews what another has
// granted. An older service is not asked for what it does not know.
func TestOneNoticeIsEnough(t *testing.T) {
	t.Parallel()
	for _, former := range []bool{false, true} {
		engine := memory.NewServer()
		var once atomic.Bool
		instance := func() driver.Driver {
			d := engine.Connect()
			s, err := serve.New(asked{d, &once}, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Drain(); s.Close(); d.Close() })
			if !former {
				return behind(t, s)
			}
			return behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil || bytes.Contains(body, []byte("wanted_once")) {
					http.Error(w, `{"outcome":"error","code":"invalid","error":"unknown field"}`, http.StatusBadRequest)
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				if r.URL.Path != wire.Features {
					s.ServeHTTP(w, r)
					return
				}
				answer := httptest.NewRecorder()
				s.ServeHTTP(answer, r)
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, strings.Replace(answer.Body.String(), `"wanted_once":true,`, "", 1))
			}))
		}
		grants, renews := instance(), instance()
		for _, enough := range []bool{true, false} {
			name := map[bool]string{true: "once", false: "each"}[enough]
			claim := func(d driver.Driver) driver.Claim {
				c, err := d.Claim(driver.Request{Resource: name, Owner: "the-holder-of-this-test", TTL: time.Minute, Wanted: func() {}, WantedOnce: enough})
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			want := enough && !former
			once.Store(!want)
			if _, err := claim(grants).Try(t.Context()); err != nil || once.Load() != want {
				t.Errorf("former %v, %s: Try: %v, once %v", former, name, err, once.Load())
			}
			once.Store(!want)
			if _, err := claim(renews).Renew(t.Context(), time.Minute); err != nil || once.Load() != want {
				t.Errorf("former %v, %s: Renew: %v, once %v", former, name, err, once.Load())
			}
		}
	}
}
