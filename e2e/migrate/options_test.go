package migrate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/servers"
)

// The page names each option that the installed versions of the other libraries have.
func TestPageNamesEveryOption(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	for library, options := range map[string]func(t *testing.T) []string{
		"redsync": func(t *testing.T) []string {
			return exported(t, "github.com/go-redsync/redsync/v4", func(name string) bool { return strings.HasPrefix(name, "With") })
		},
		"bsm/redislock": func(t *testing.T) []string {
			retries := exported(t, "github.com/bsm/redislock", func(name string) bool {
				return strings.HasSuffix(name, "Retry") || strings.HasSuffix(name, "Backoff")
			})
			return append(retries, fields(t, "github.com/bsm/redislock", "Options")...)
		},
		"redis-py": func(t *testing.T) []string {
			const names = "import inspect, redis.lock; print(*list(inspect.signature(redis.lock.Lock.__init__).parameters)[3:])"
			return strings.Fields(output(t, servers.NeedPython(t, "redis"), "-c", names))
		},
		"Curator": func(t *testing.T) []string {
			_, classes := servers.NeedCurator(t)
			public := output(t, "javap", "-cp", classes, "org.apache.curator.framework.recipes.locks.InterProcessMutex")
			var methods []string
			for _, m := range regexp.MustCompile(`public \S+ (\w+)\(`).FindAllStringSubmatch(public, -1) {
				methods = append(methods, m[1])
			}
			return methods
		},
	} {
		t.Run(library, func(t *testing.T) {
			all := options(t)
			if len(all) < 4 {
				t.Fatalf("found %q", all)
			}
			for _, option := range all {
				if !regexp.MustCompile("`([^`]*[ .(])?" + option + "[`(]").Match(text) {
					t.Errorf("the page says nothing of %s", option)
				}
			}
		})
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(out)
}

// parse reads the package at the root of a module.
func parse(t *testing.T, module string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(strings.TrimSpace(output(t, "go", "list", "-m", "-f", "{{.Dir}}", module)), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// exported is the functions of a module that are chosen.
func exported(t *testing.T, module string, chosen func(name string) bool) (names []string) {
	t.Helper()
	for _, f := range parse(t, module) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.IsExported() && chosen(fn.Name.Name) {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

// fields is the exported fields of a type.
func fields(t *testing.T, module, of string) (names []string) {
	t.Helper()
	for _, f := range parse(t, module) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != of {
				return true
			}
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				for _, name := range field.Names {
					names = append(names, name.Name)
				}
			}
			return false
		})
	}
	return names
}
