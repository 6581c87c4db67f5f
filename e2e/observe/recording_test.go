package observe

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// every is how often a recording scrapes, and Prometheus evaluates rules.
const every = 15 * time.Second

// A recording has what Prometheus would have stored of one target.
type recording struct {
	t       *testing.T
	target  http.Handler // that serves /metrics
	scrapes int
	series  map[string][]string // values in promtool's notation, by the name and the labels
}

func newRecording(t *testing.T) *recording {
	return &recording{t: t, series: make(map[string][]string)}
}

// scrape stores one sample of each series. One that begins late has none before.
func (r *recording) scrape() {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.target.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	for name, f := range families {
		for _, m := range f.Metric {
			r.add(name, m)
		}
	}
	r.sample(up, nil, 1)
	r.scrapes++
	for key, values := range r.series {
		if len(values) < r.scrapes {
			r.t.Errorf("%s has ended", key)
		}
	}
}

// add stores what a metric consists of.
func (r *recording) add(name string, m *dto.Metric) {
	var labels []string
	for _, l := range m.Label {
		labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	h := m.Histogram
	if h == nil {
		r.sample(name, labels, m.GetCounter().GetValue()+m.GetGauge().GetValue())
		return
	}
	for _, b := range h.Bucket {
		le := "+Inf"
		if !math.IsInf(b.GetUpperBound(), 1) {
			le = strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)
		}
		r.sample(name+"_bucket", append(slices.Clone(labels), fmt.Sprintf("le=%q", le)), float64(b.GetCumulativeCount()))
	}
	r.sample(name+"_count", labels, float64(h.GetSampleCount()))
	r.sample(name+"_sum", labels, h.GetSampleSum())
}

func (r *recording) sample(name string, labels []string, v float64) {
	labels = append([]string{`job="shop"`, `instance="a:1"`}, labels...)
	slices.Sort(labels[2:])
	key := fmt.Sprintf("%s{%s}", name, strings.Join(labels, ","))
	for len(r.series[key]) < r.scrapes {
		r.series[key] = append(r.series[key], "_")
	}
	r.series[key] = append(r.series[key], strconv.FormatFloat(v, 'g', -1, 64))
}

// miss lets d pass without a scrape.
func (r *recording) miss(d time.Duration) {
	for ; d > 0; d -= every {
		time.Sleep(every)
		r.scrapes++
		for key := range r.series {
			r.series[key] = append(r.series[key], "_")
		}
	}
}

// up is what Prometheus itself stores of a target.
const up = "up"

// down lets d pass while the target cannot be scraped.
func (r *recording) down(d time.Duration) {
	for ; d > 0; d -= every {
		time.Sleep(every)
		for key := range r.series {
			if !strings.HasPrefix(key, up+"{") {
				r.series[key] = append(r.series[key], "stale")
			}
		}
		r.sample(up, nil, 0)
		r.scrapes++
	}
}

// pass scrapes for as long as d of the bubble's time.
func (r *recording) pass(d time.Duration) {
	for ; d > 0; d -= every {
		time.Sleep(every)
		r.scrape()
	}
}

// An expectation is what an expression has at the end of a recording: values by labels.
type expectation struct {
	expr string
	want map[string]float64
}

// group is the recording, as a group of promtool's tests.
func (r *recording) group(expected ...expectation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  - interval: %v\n    input_series:\n", every)
	for _, key := range slices.Sorted(maps.Keys(r.series)) {
		fmt.Fprintf(&b, "      - series: %q\n        values: %q\n", key, strings.Join(r.series[key], " "))
	}
	b.WriteString("    promql_expr_test:\n")
	for _, e := range expected {
		fmt.Fprintf(&b, "      - expr: %q\n        eval_time: %v\n        exp_samples:\n", e.expr, every*time.Duration(r.scrapes-1))
		for _, labels := range slices.Sorted(maps.Keys(e.want)) {
			fmt.Fprintf(&b, "          - labels: %q\n            value: %v\n", labels, e.want[labels])
		}
	}
	return b.String()
}
