package leaseholdprom_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-go/leasehold/adapter/leaseholdprom"
)

var fqName = regexp.MustCompile(`fqName: "([a-z_]+)"`)

// exported are the names of all metrics.
func exported(t *testing.T) map[string]bool {
	metrics, err := leaseholdprom.New(&leaseholdprom.Options{Registerer: prometheus.NewRegistry(), Lock: func(name string) string { return name }})
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc, 100)
	metrics.Describe(descs)
	close(descs)
	names := make(map[string]bool)
	for d := range descs {
		names[fqName.FindStringSubmatch(d.String())[1]] = true
	}
	return names
}

// others are the metrics of the command and of the service, whose tests look for them.
var others = regexp.MustCompile(`^leasehold_((run|store|service|history|webhook)_.*|call_seconds|waiting_calls|claims|listeners|draining|build_info)$`)

// The dashboard, the alerts and the page name what is exported, and the dashboard and the page all of it.
func TestDocsNameTheMetrics(t *testing.T) {
	names := exported(t)
	used := regexp.MustCompile(`\bleasehold_[a-z_]+`)
	for file, complete := range map[string]bool{"observe/dashboard.json": true, "observe/alerts.yml": false, "observe.md": true} {
		text, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		seen := make(map[string]bool)
		for _, name := range used.FindAllString(string(text), -1) {
			for _, part := range []string{"_bucket", "_count", "_sum"} {
				name = strings.TrimSuffix(name, part)
			}
			if others.MatchString(name) {
				continue
			}
			if seen[name] = true; !names[name] {
				t.Errorf("%s uses %s, which is not exported", file, name)
			}
		}
		for name := range names {
			if complete && !seen[name] {
				t.Errorf("%s does not use %s", file, name)
			}
		}
	}
}
