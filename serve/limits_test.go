package serve_test

import (
	"math"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

func TestRateIsANumber(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{-1, math.NaN(), math.Inf(1)} {
		d := memory.New()
		if s, err := serve.New(d, &serve.Options{Limits: serve.Limits{Rate: rate}}); err == nil {
			t.Errorf("a rate of %v is accepted", rate)
			s.Close()
		}
		d.Close()
	}
}

func TestWeightsAndLimits(t *testing.T) {
	t.Parallel()
	engine := memory.NewServer()
	s, other := start(t, engine, nil), start(t, engine, nil)
	const claim = `{"name":"gpu","owner":"%s","ttl_ms":60000,"mode":"shared","limit":5,"weight":%d}`
	s.post(wire.Acquire, claim, "a", 3).want(t, 200, "")
	other.post(wire.Acquire, claim, "b", 3).want(t, 409, "busy")
	other.post(wire.Acquire, claim, "b", 2).want(t, 200, "")
	other.post(wire.Acquire, claim, "a", 2).want(t, 400, "invalid") // it holds with another weight
	other.post(wire.Acquire, claim, "c", 6).want(t, 422, "too_heavy")
	if st := s.state("gpu"); st.Used != 5 || st.Limit != 0 || st.Holders[0].Weight != 3 || st.Holders[1].Weight != 2 {
		t.Errorf("shown as %+v", st)
	}
	other.post(wire.Limit, `{"name":"gpu","limit":2}`).want(t, 200, "")
	if st := s.state("gpu"); st.Limit != 2 || st.Used != 5 || len(st.Holders) != 2 {
		t.Errorf("after the limit was lowered: %+v", st)
	}
	s.post(wire.Acquire, claim, "d", 3).want(t, 422, "too_heavy")
	s.post(wire.Release, `{"name":"gpu","owner":"b"}`).want(t, 200, "")
	s.post(wire.Acquire, claim, "d", 1).want(t, 409, "busy")
	s.post(wire.Limit, `{"name":"gpu","limit":0}`).want(t, 200, "")
	s.post(wire.Acquire, claim, "d", 1).want(t, 200, "")

	s.post(wire.Limit, `{"name":"gpu","limit":-1}`).want(t, 400, "invalid")
	s.post(wire.Limit, `{"name":"gpu"}`).want(t, 400, "invalid")
	s.post(wire.Limit, `{"name":"gpu","limit":null}`).want(t, 400, "invalid")
	s.post(wire.Limit, `{"name":"","limit":1}`).want(t, 400, "invalid_name")
	s.post(wire.Acquire, `{"name":"x","owner":"a","ttl_ms":60000,"weight":2}`).want(t, 400, "invalid")
	s.post(wire.Acquire, claim, "e", -1).want(t, 400, "invalid")
}

// light is a driver without weights and limits.
type light struct{ *memory.Driver }

func (d light) Features() driver.Features {
	f := d.Driver.Features()
	f.Weights, f.Limits = false, false
	return f
}

func TestWeightsOnAnEngineWithout(t *testing.T) {
	t.Parallel()
	s := startOn(t, light{memory.New()}, nil)
	s.post(wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000,"mode":"shared","weight":2}`).want(t, 501, "unsupported")
	s.post(wire.Acquire, `{"name":"n","owner":"a","ttl_ms":60000,"mode":"shared","weight":1}`).want(t, 200, "")
	s.post(wire.Limit, `{"name":"n","limit":2}`).want(t, 501, "unsupported")
}
