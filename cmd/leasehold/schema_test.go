//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// sealed is a schema that the command prints, which here refuses what it does not describe.
func (c *cli) sealed(name string) *jsonschema.Schema {
	c.t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(c.want(0, "schema", name).stdout))
	if err != nil {
		c.t.Fatal(err)
	}
	seal(doc)
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	if err := compiler.AddResource(name, doc); err != nil {
		c.t.Fatal(err)
	}
	s, err := compiler.Compile(name)
	if err != nil {
		c.t.Fatalf("the schema %s: %v", name, err)
	}
	return s
}

func seal(doc any) {
	switch v := doc.(type) {
	case map[string]any:
		if _, labels := v["additionalProperties"]; v["type"] == "object" && !labels {
			v["additionalProperties"] = false
		}
		for _, inner := range v {
			seal(inner)
		}
	case []any:
		for _, inner := range v {
			seal(inner)
		}
	}
}

// obeys checks that text is as the schema says, each line of it if there are many of them.
func (c *cli) obeys(name, text string, lines bool) {
	c.t.Helper()
	s, all := c.sealed(name), []string{text}
	if lines {
		all = strings.Split(strings.TrimSpace(text), "\n")
	}
	for _, one := range all {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(one))
		if err == nil {
			err = s.Validate(doc)
		}
		if err != nil {
			c.t.Errorf("%s: %v in:\n%s", name, err, one)
		}
	}
}

// All that commands print with --json is as their schemas say, and nothing of it is left out.
func TestOutputsAreAsTheirSchemasSay(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	lease := c.acquire("--note", "why", "--ttl", "1h", "job")
	c.wait("first")
	c.until("a waiter", func(v stateView) bool { return len(v.Waiters) == 1 })
	c.acquire("--slots", "3", "--ttl", "1h", "gpu")
	c.wantRun(0, "--once-per", "1h", "kept", "--", "true")
	for _, call := range []struct{ schema, line string }{
		{"ls", "ls"}, {"ls", "top"}, {"ls", "ls nothing/"}, {"show", "show job"}, {"show", "show gpu"}, {"show", "show kept"}, {"show", "show free"},
		{"wait", "wait free"}, {"doctor", "doctor"}, {"version", "version"}, {"schema", "schema"}, {"man", "man pages"},
		{"reset", "reset kept"}, {"reset", "reset free"}, {"acquire", "renew job " + lease.Owner}, {"acquire", "acquire other"},
		{"evict", "evict job --yes --reason test --owner " + lease.Owner},
	} {
		o := c.call(append(strings.Fields(call.line), "--json")...)
		if o.code != 0 {
			t.Errorf("%s: exit code %d, %s", call.line, o.code, o.stderr)
		}
		c.obeys(call.schema, o.stdout, false)
	}
	c.obeys("acquire", c.want(0, "reserve", "--json", "mine too", "--reason", "why").stdout, false)
	served := *c
	_, served.store = c.serve()
	served.want(0, "run", "seen", "--", "true")
	c.obeys("history", served.want(0, "history", "--json").stdout, false)
	free := c.acquire("free")
	c.obeys("release", c.want(0, "release", "--json", "free", free.Owner).stdout, false)
	o := c.call("doctor", "--json", "--store", "redis://u:p@"+nobody)
	c.obeys("doctor", o.stdout, false)

	for _, line := range []string{"show", "ls --nosuch", "release job x", "--store redis://" + nobody + " ls"} {
		c.obeys("error", c.call(append([]string{"--json"}, strings.Fields(line)...)...).stderr, false)
	}
	told := c.want(0, "run", "--json", "-v", "mine", "--", "true")
	c.obeys("event", told.stderr, true)
	told = c.call("run", "--json", "-v", "-n", "gpu", "--", "true")
	lines := strings.Split(strings.TrimSpace(told.stderr), "\n")
	c.obeys("event", strings.Join(lines[:len(lines)-1], "\n"), true)
	c.obeys("error", lines[len(lines)-1], false)
}

// A schema refuses what is not as it says.
func TestSchemasRefuse(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for name, wrong := range map[string][]string{
		"show":    {`{}`, `[]`, `{"name":"a","token":1,"holders":[],"waiters":[]}`, `{"name":"a","token":"1","holders":[],"waiters":[],"more":1}`},
		"doctor":  {`{"store":"","from":"","level":"fine","findings":[]}`},
		"version": {`{"version":"1","commit":"","go":1}`},
	} {
		for _, text := range wrong {
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if c.sealed(name).Validate(doc) == nil {
				t.Errorf("%s: %s passes", name, text)
			}
		}
	}
	for _, line := range []string{"schema nosuch", "schema show ls"} {
		c.want(64, strings.Fields(line)...)
	}
	for _, o := range outputs {
		c.sealed(o.name)
	}
	if text := c.want(0, "__complete", "schema", "").stdout; !strings.Contains(text, "doctor\t") {
		t.Errorf("completion: %s", text)
	}
	// What is documented is what docs/schemas has.
	for _, o := range outputs {
		text, err := os.ReadFile(filepath.Join("../../docs/schemas", o.name+".json"))
		if printed := c.want(0, "schema", o.name).stdout; err != nil || string(text) != printed {
			t.Errorf("docs/schemas/%s.json is not what leasehold schema %s prints: %v", o.name, o.name, err)
		}
	}
}
