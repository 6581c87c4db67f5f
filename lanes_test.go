package leasehold_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// suites are the functions of tests that run the conformance suite on each engine in the short lane.
var suites = map[string][]string{
	"caslock":      {"engine/caslock/conformance_test.go TestConformance"},
	"etcdlock":     {"engine/etcdlock/alone_test.go TestConformance"},
	"httplock":     {"engine/httplock/conformance_test.go TestConformance", "e2e/served/served_test.go TestRedisConformance"},
	"kubelock":     {}, // the API server takes minutes to build: make matrix
	"memcachelock": {"e2e/memcached/memcached_test.go TestMemcachedConformance"},
	"natslock":     {"e2e/nats/nats_test.go TestConformance"},
	"pglisten":     {"e2e/postgres/conformance_test.go TestPostgresConformance"},
	"quorum":       {"engine/quorum/quorum_test.go TestConformance"},
	"redislock":    {"engine/redislock/redis_test.go TestRedisConformance"},
	"s3lock":       {"e2e/s3/s3_test.go TestBasics"}, // those cases that its slow waiters leave time for
	"sqllock": {
		"e2e/postgres/conformance_test.go TestPostgresConformance", "e2e/mysql/conformance_test.go conformanceOfMariaDB",
		"e2e/sqlite/conformance_test.go TestSQLiteConformance",
	},
	"zklock": {"engine/zklock/zookeeper_test.go TestConformance"},
}

// skips are what leaves a test out of the short lane.
var skips = []string{"Long", "Short", "OnlyWithAll", "Skip", "Skipf", "SkipNow"}

func TestShortLaneRunsTheSuiteOnEachEngine(t *testing.T) {
	engines, err := os.ReadDir("engine")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range engines {
		tests, ok := suites[e.Name()]
		if !ok {
			t.Errorf("no test runs the conformance suite on %s in the short lane", e.Name())
		}
		for _, test := range tests {
			file, name, _ := strings.Cut(test, " ")
			if called := callsOf(t, file, name); !called["Run"] && !called["RunBubbled"] || !called["locktest"] {
				t.Errorf("%s: %s in %s does not run it", e.Name(), name, file)
			} else {
				for _, skip := range skips {
					if called[skip] {
						t.Errorf("%s: %s in %s is left out by %s", e.Name(), name, file, skip)
					}
				}
			}
		}
	}
}

// callsOf are the names in a function, and in those of its file that it names.
func callsOf(t *testing.T, file, name string) map[string]bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names, next := map[string]bool{}, []string{name}
	for len(next) > 0 {
		at := slices.IndexFunc(parsed.Decls, func(d ast.Decl) bool {
			f, ok := d.(*ast.FuncDecl)
			return ok && f.Recv == nil && f.Name.Name == next[0]
		})
		next = next[1:]
		if at < 0 {
			continue
		}
		ast.Inspect(parsed.Decls[at], func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && !names[id.Name] {
				names[id.Name] = true
				next = append(next, id.Name)
			}
			return true
		})
	}
	return names
}
