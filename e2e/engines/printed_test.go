package engines

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log/slog"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/httplimit"
	"github.com/leasehold-go/leasehold/adapter/leaseholdcertmagic"
	"github.com/leasehold-go/leasehold/adapter/leaseholdgocron"
	"github.com/leasehold-go/leasehold/adapter/leaseholdgoose"
	"github.com/leasehold-go/leasehold/adapter/leaseholdotel"
	"github.com/leasehold-go/leasehold/adapter/leaseholdprom"
	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/engine/caslock"
	"github.com/leasehold-go/leasehold/engine/etcdlock"
	"github.com/leasehold-go/leasehold/engine/httplock"
	"github.com/leasehold-go/leasehold/engine/kubelock"
	"github.com/leasehold-go/leasehold/engine/memcachelock"
	"github.com/leasehold-go/leasehold/engine/natslock"
	"github.com/leasehold-go/leasehold/engine/pglisten"
	"github.com/leasehold-go/leasehold/engine/quorum"
	"github.com/leasehold-go/leasehold/engine/redislock"
	"github.com/leasehold-go/leasehold/engine/s3lock"
	"github.com/leasehold-go/leasehold/engine/sqllock"
	"github.com/leasehold-go/leasehold/engine/zklock"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/locktest/explore"
	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
	"github.com/leasehold-go/leasehold/stores"
)

// printable is one of each exported type that is neither an interface nor a function, in packages
// that users import.
var printable = []any{
	caslock.Driver{}, caslock.Item{}, caslock.Listed{}, caslock.Options{}, caslock.Version(""),
	driver.Busy{}, driver.End{}, driver.Eviction{}, driver.Features{}, driver.Finding{}, driver.Grant{}, driver.Holder{}, driver.Level(0), driver.Mode(0),
	driver.Renewal{}, driver.Trial{}, driver.Ending{}, driver.Request{}, driver.State{}, driver.Waiter{},
	etcdlock.Driver{}, etcdlock.Options{},
	explore.Harness{}, explore.Line{}, explore.Process{}, explore.World{},
	fence.Dialect(0), fence.Memory{}, fence.Once{}, fence.SQL{},
	httplimit.Limit{},
	httplock.Options{},
	kubelock.Driver{}, kubelock.Options{},
	leasehold.BusyError{}, leasehold.Details{}, leasehold.Event{}, leasehold.Holder{}, leasehold.Kind(0), leasehold.Lease{}, leasehold.Leases{},
	leasehold.Locker{}, leasehold.Options{}, leasehold.Owner{}, leasehold.Page{}, leasehold.PageOptions{}, leasehold.State{}, leasehold.Step(0), leasehold.Waiter{},
	leaseholdcertmagic.Storage{},
	leaseholdgocron.Elector{}, leaseholdgocron.Locker{},
	leaseholdgoose.Locker{},
	leaseholdotel.Observer{}, leaseholdotel.Options{},
	leaseholdprom.Collector{}, leaseholdprom.Options{},
	locktest.Belief{}, locktest.Case{}, locktest.Faulty{}, locktest.Harness{}, locktest.History{}, locktest.Need(0), locktest.Op(0), locktest.Pairs{},
	memcachelock.Driver{}, memcachelock.Options{},
	memory.Driver{}, memory.Server{},
	natslock.Driver{}, natslock.Options{},
	pglisten.Listener{},
	quorum.Driver{}, quorum.NodesError{}, quorum.Options{},
	redislock.Driver{}, redislock.Once{}, redislock.OnceOptions{}, redislock.Options{}, redislock.Redlock{},
	s3lock.Driver{}, s3lock.Options{},
	serve.Access{}, serve.Call{}, serve.Client{}, serve.HistoryEntry{}, serve.HistoryOptions{}, serve.HistoryQuery{}, serve.HistoryState{}, serve.Limits{}, serve.Options{}, serve.Right(""), serve.Rule{}, serve.Server{}, serve.TLSFiles{}, serve.Webhook{},
	sqllock.Driver{}, sqllock.Options{},
	stores.Scheme{},
	zklock.Driver{}, zklock.Options{},
}

// A type that somebody adds is printable.
func TestAllAreThere(t *testing.T) {
	var there []string
	for _, v := range printable {
		there = append(there, reflect.TypeOf(v).String())
	}
	for _, name := range exported(t, "../..") {
		if !slices.Contains(there, name) {
			t.Errorf("%s is not looked at", name)
		}
	}
}

// exported lists the types of packages that users can import, below root.
func exported(t *testing.T, root string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"internal", "testdata", "node_modules"}, d.Name()) ||
			slices.Contains([]string{".git", ".ci", "bench", "clients", "cmd", "dist", "docs", "e2e", "scripts"}, rel)):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			types, ok := decl.(*ast.GenDecl)
			if !ok || types.Tok != token.TYPE || file.Name.Name == "main" {
				continue
			}
			for _, spec := range types.Specs {
				spec := spec.(*ast.TypeSpec)
				switch spec.Type.(type) {
				case *ast.InterfaceType, *ast.FuncType:
					continue
				}
				if spec.Name.IsExported() && !spec.Assign.IsValid() {
					names = append(names, file.Name.Name+"."+spec.Name.Name)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 80 {
		t.Fatalf("%d types: there are more", len(names))
	}
	return names
}

// canary stands where an owner or a password may be, public where people look.
const (
	canary = "CANARYCANARYCANARYCANARYCANARY12"
	public = "public"
)

var secret = regexp.MustCompile(`(?i)owner|password|secret|^handle$`)

// plain are the maps whose keys are no owners, and what they are.
var plain = map[string]string{
	"caslock.Driver.resources":      "names",
	"details.Details.Labels":        "labels",
	"etcdlock.places.of":            "names",
	"etcdlock.writes.taken":         "names",
	"fence.Memory.seen":             "names",
	"held.Leases.all":               "names",
	"held.Leases.unknown":           "names",
	"leasehold.Details.Labels":      "labels",
	"leasehold.localQueue.turns":    "names",
	"leasehold.terms.byName":        "names",
	"leaseholdgocron.Locker.leases": "names",
	"memory.Server.resources":       "names",
	"quorum.Driver.ids":             "servers",
	"redislock.knownLocks.now":      "lock keys",
	"redislock.knownLocks.old":      "lock keys",
	"serve.gate.all":                "clients",
}

// open are types that do show a secret in a field that fmt may not ask, and why. With methods they
// show none.
var open = map[string]string{
	"driver.Request":   "drivers get one and keep it; its Owner is a string, as it is sent",
	"explore.Process":  "has a World",
	"explore.World":    "is a test's, whose owners release nothing",
	"locktest.Belief":  "goes between processes of a test, as JSON",
	"locktest.History": "has Beliefs",
	"zklock.Options":   "callers write Password into it",
}

// fill puts canaries into all that v reaches: into strings with secret names, and into keys of maps.
// path names v.
func fill(v reflect.Value, path string, depth int) {
	if depth > 8 {
		return
	}
	ours := v.Type().PkgPath() == "" || strings.HasPrefix(v.Type().PkgPath(), "github.com/leasehold-go/")
	switch v.Kind() {
	case reflect.String:
		v.SetString(public)
		if secret.MatchString(path[strings.LastIndex(path, ".")+1:]) {
			v.SetString(canary)
		}
	case reflect.Pointer:
		if ours || v.Type().Elem().Kind() != reflect.Struct {
			one := reflect.New(v.Type().Elem())
			fill(one.Elem(), path, depth+1)
			v.Set(one)
		}
	case reflect.Slice:
		some := reflect.MakeSlice(v.Type(), 1, 1)
		fill(some.Index(0), path, depth+1)
		v.Set(some)
	case reflect.Array:
		if v.Len() > 0 {
			fill(v.Index(0), path, depth+1)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		if _, ok := plain[path]; ok {
			fill(key, path+".key", depth+1)
		} else {
			fill(key, path+".owner", depth+1)
		}
		fill(value, path, depth+1)
		some := reflect.MakeMap(v.Type())
		some.SetMapIndex(key, value)
		v.Set(some)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[driver.Owner]() {
			v.Set(reflect.ValueOf(driver.OwnerOf(canary)))
			return
		}
		if !ours {
			return // other people's: a mutex, a client
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			field := reflect.NewAt(f.Type, unsafe.Pointer(v.Field(i).UnsafeAddr())).Elem() // settable, also when it is not exported
			fill(field, v.Type().String()+"."+f.Name, depth+1)
		}
	}
}

// printed is what v looks like, by all ways that people log with.
func printed(v any) string {
	var all bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		fmt.Fprintf(&all, verb+"\n", v)
	}
	fmt.Fprintln(&all, fmt.Errorf("about %v", v))
	slog.New(slog.NewTextHandler(&all, nil)).Info("about", "v", v)
	slog.New(slog.NewJSONHandler(&all, nil)).Info("about", "v", v)
	return all.String()
}

// shows reports whether text has what is secret.
func shows(text, secret string) bool {
	return slices.ContainsFunc([]string{secret, fmt.Sprintf("%x", secret), fmt.Sprint([]byte(secret))}, func(form string) bool {
		return strings.Contains(text, strings.Trim(form, "[]"))
	})
}

// inside puts what v points to, and v, into fields that fmt may not ask.
func inside(v reflect.Value) map[string]any {
	ways := map[string]any{"a pointer": v.Interface(), "an interface in a field": struct{ v any }{v.Interface()}}
	for what, of := range map[string]reflect.Value{"a value": v.Elem(), "a pointer": v} {
		if what == "a value" && !copied(v) {
			continue
		}
		holder := reflect.New(reflect.StructOf([]reflect.StructField{{
			Name: "hidden", PkgPath: "github.com/leasehold-go/leasehold/e2e/engines", Type: of.Type(),
		}})).Elem()
		reflect.NewAt(of.Type(), unsafe.Pointer(holder.Field(0).UnsafeAddr())).Elem().Set(of)
		ways[what+" in a field"] = holder.Interface()
		ways["a pointer to a struct with "+what+" in a field"] = holder.Addr().Interface()
	}
	return ways
}

// copied reports whether people have values of the type that v points to, and not only pointers.
func copied(v reflect.Value) bool {
	formatter := reflect.TypeFor[fmt.Formatter]()
	return v.Elem().Type().Implements(formatter) || !v.Type().Implements(formatter)
}

// Every exported type prints itself with secrets inside.
func TestNothingPrintsASecret(t *testing.T) {
	for _, v := range printable {
		typ := reflect.TypeOf(v)
		t.Run(typ.String(), func(t *testing.T) {
			one := reflect.New(typ)
			fill(one.Elem(), typ.String(), 0)
			for how, v := range inside(one) {
				if _, ok := open[typ.String()]; ok && strings.Contains(how, "field") {
					continue
				}
				if text := printed(v); shows(text, canary) {
					i := strings.Index(text, canary)
					t.Errorf("%s: %s", how, text[max(0, i-200):min(len(text), max(i, 0)+60)])
				}
			}
			if copied(one) {
				if text := printed(one.Elem().Interface()); shows(text, canary) {
					t.Error("the value itself")
				}
			}
		})
	}
}

// A key is of a value in a context.
type key struct{}

// The test finds what it is for.
func TestACanaryIsFound(t *testing.T) {
	type leaky struct {
		Names map[string]*int
	}
	one := reflect.New(reflect.TypeFor[leaky]())
	fill(one.Elem(), "leaky", 0)
	for how, v := range inside(one) {
		if !shows(printed(v), canary) {
			t.Errorf("%s: found nothing in %v", how, v)
		}
	}
}

// What is real prints no more than what a test makes.
func TestLeasesPrintWhatPeopleWant(t *testing.T) {
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Acquire(t.Context(), "orders/42")
	if err != nil {
		t.Fatal(err)
	}
	leases, err := locks.AcquireAll(t.Context(), []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	err = locks.Do(t.Context(), "c", func(ctx context.Context) error {
		inner, _ := leasehold.FromContext(ctx)
		for what, v := range map[string]any{
			"locker": locks, "lease": lease, "leases": leases, "context": lease.Context(), "all's": leases.Context(), "Do's": ctx,
			"derived": context.WithValue(ctx, key{}, "v"), "in a field": struct{ l *leasehold.Lease }{lease},
			"fence's": fence.LeaseOf("orders/42", 1, lease.Owner()), "fence's in a field": struct{ l fence.Lease }{fence.LeaseOf("orders/42", 1, lease.Owner())},
			"context in a field": struct{ c context.Context }{ctx},
		} {
			text := printed(v)
			for _, owner := range []string{lease.Owner(), leases.Lease("a").Owner(), inner.Owner()} {
				if shows(text, owner) {
					t.Errorf("%s shows an owner", what)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`Name:"orders/42"`, fmt.Sprint("Token:", lease.Token()), "Left:9."} {
		if text := fmt.Sprint(lease); !strings.Contains(text, want) {
			t.Errorf("%s has no %s", text, want)
		}
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("got", "lease", lease)
	for _, want := range []string{"lease.name=orders/42", fmt.Sprint("lease.token=", lease.Token()), "lease.left=9."} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s has no %s", log.String(), want)
		}
	}
}
