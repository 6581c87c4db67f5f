package zklock

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/driver"
)

func TestNodesAreReadAsTheyAreNamed(t *testing.T) {
	t.Parallel()
	for _, req := range []driver.Request{
		{Owner: "a"}, {Owner: "b", Mode: driver.Shared}, {Owner: "c", Mode: driver.Shared, Limit: 12},
		{Owner: "a", Queue: true}, {Owner: "c", Mode: driver.Shared, Limit: 12, Queue: true},
		{Owner: "d", Mode: driver.Shared, Weight: 1}, {Owner: "d", Mode: driver.Shared, Weight: 2}, {Owner: "d", Weight: 2},
		{Owner: "e", Mode: driver.Shared, Limit: driver.MaxWeight, Weight: driver.MaxWeight, Queue: true},
	} {
		for _, exclusive := range []string{markLock, markWrite} {
			for _, seq := range []int32{0, 7, math.MaxInt32, math.MinInt32, -1, -1234567890} {
				name := namePrefix(&req, exclusive) + fmt.Sprintf("%010d", seq) // as the server does
				n, err := parseNode(name)
				if name := strings.TrimSuffix(name, fmt.Sprintf("%010d", seq)); req.Weight > 1 && !strings.HasSuffix(name, exclusive) {
					t.Errorf("%q: other clients do not take it for exclusive", name)
				}
				weight := max(req.Weight, 1)
				if req.Mode == driver.Exclusive {
					weight = 0
				}
				if want := (node{name, guidOf(req.Owner), req.Mode, req.Limit, weight, seq, !req.Queue}); err != nil || n != want {
					t.Errorf("%q: %+v, %v; want %+v", name, n, err, want)
				}
			}
		}
	}
}

func TestForeignNodes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]node{
		"_c_0123456789abcdef0123456789abcdef-weight-0-lock-0000000042":          {mode: driver.Exclusive, seq: 42},
		"_c_0123456789abcdef0123456789abcdef-weight-03-lock-0000000042":         {mode: driver.Exclusive, seq: 42},
		"_c_0123456789abcdef0123456789abcdef-weight-3-4-lock-0000000042":        {mode: driver.Exclusive, seq: 42},
		"_c_0123456789abcdef0123456789abcdef-weight--lock-0000000042":           {mode: driver.Exclusive, seq: 42},
		"_c_0123456789abcdef0123456789abcdef-weight-2147483648-lock-0000000042": {mode: driver.Exclusive, seq: 42},
		"_c_0123456789abcdef0123456789abcdef-limit-x-weight-3-lock-0000000042":  {mode: driver.Exclusive, seq: 42},
		"_c_0123456789abcdef0123456789abcdef-limit--weight-3-lock-0000000042":   {mode: driver.Exclusive, seq: 42},
		"_c_0123456789abcdef0123456789abcdef-other-weight-3-lock-0000000042":    {mode: driver.Exclusive, seq: 42},
		"_c_0123456789abcdef-weight-3-lock-0000000042":                          {mode: driver.Exclusive, seq: 42},
		"_c_0123456789abcdef0123456789abcdef-limit-2-weight-3-lock-0000000042":  {mode: driver.Exclusive, seq: 42},
		"x-weight-3-lock-0000000042":                                            {mode: driver.Exclusive, seq: 42},
		"_c_6f1c1b1e-2d6f-4b8e-8d0a-5f3c2b1a0d9e-lock-0000000042":               {mode: driver.Exclusive, seq: 42},
		"_c_6f1c1b1e-2d6f-4b8e-8d0a-5f3c2b1a0d9e-__READ__0000000042":            {mode: driver.Shared, seq: 42},
		"_c_6f1c1b1e-2d6f-4b8e-8d0a-5f3c2b1a0d9e-__WRIT__0000000042":            {mode: driver.Exclusive, seq: 42},
		"0f8c1d__lock__0000000042":                                              {mode: driver.Exclusive, seq: 42},
		"0000000042":                                                            {mode: driver.Exclusive, seq: 42},
		"lock--000000001":                                                       {mode: driver.Exclusive, seq: -1},
	} {
		n, err := parseNode(name)
		if err != nil || n.mode != want.mode || n.seq != want.seq || n.limit != 0 {
			t.Errorf("%q: %+v, %v", name, n, err)
		}
	}
	for _, name := range []string{"", "config", "lock-12", "lock-00000000x1", "9999999999"} {
		if n, err := parseNode(name); !errors.Is(err, ErrAlien) {
			t.Errorf("%q: %+v, %v; want ErrAlien", name, n, err)
		}
	}
}

// The sequence goes from its greatest number to its smallest: the order goes on.
func TestOrderOverTheWrapAround(t *testing.T) {
	t.Parallel()
	for _, start := range []int32{0, math.MaxInt32 - 3, math.MinInt32, -4} {
		var names []string
		for i := range int32(8) {
			names = append(names, fmt.Sprintf("%s%010d", namePrefix(&driver.Request{Owner: fmt.Sprint(i)}, markLock), start+i))
		}
		for _, shuffled := range [][]string{{names[5], names[0], names[7], names[3]}, {names[0], names[7], names[5], names[3]}} {
			nodes, err := parseNodes(shuffled)
			var got []string
			for _, n := range nodes {
				got = append(got, n.name)
			}
			if want := []string{names[0], names[3], names[5], names[7]}; err != nil || !slices.Equal(got, want) {
				t.Errorf("from %d: %q, %v", start, got, err)
			}
		}
	}
}

func TestDetailsAreBelievedFromOwnNodesOnly(t *testing.T) {
	t.Parallel()
	req := driver.Request{Owner: "me"}
	n, err := parseNode(namePrefix(&req, markLock) + "0000000001")
	if err != nil {
		t.Fatal(err)
	}
	want := details{Owner: "me", Note: "note \"π\""}
	if got := detailsOf(n, want.encode()); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, data := range []string{"", "127.0.0.1", `{"owner":"somebody else"}`, `{"owner":""}`, "{"} {
		if got := detailsOf(n, []byte(data)); got != (details{Owner: n.name}) {
			t.Errorf("%q: %+v", data, got)
		}
	}
}

// A list that is incomplete does not count as one with damaged resources, which is complete.
func TestFailureOfAListIsNotDamage(t *testing.T) {
	t.Parallel()
	away, one, other := errors.New("away"), fmt.Errorf("one: %w", driver.ErrCorrupt), fmt.Errorf("other: %w", driver.ErrCorrupt)
	if err := worst([]error{nil, one, away}); !errors.Is(err, away) || errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("beside a failure: %v", err)
	}
	if err := worst([]error{one, nil, other}); !errors.Is(err, one) || !errors.Is(err, other) {
		t.Errorf("of two: %v", err)
	}
	if err := worst(make([]error, 2)); err != nil {
		t.Errorf("of none: %v", err)
	}
}
