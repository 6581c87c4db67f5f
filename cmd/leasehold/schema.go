package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/spf13/cobra"
)

// An output is the output of a command with --json. Its type is the only description of its fields.
// The tag "about" explains a field, and "enum" lists its values.
type output struct {
	name, about string
	value       any
}

// outputs lists all outputs, in the order of the help text.
var outputs = []output{
	{"acquire", "what acquire, renew and reserve print", leaseView{}},
	{"release", "what release prints", releasedView{}},
	{"ls", "what ls and top print", []stateView{}},
	{"show", "what show prints", stateView{}},
	{"wait", "what wait prints", waitView{}},
	{"watch", "each line of ls --watch", changeView{}},
	{"evict", "what evict prints", evictedView{}},
	{"reset", "what reset prints", resetView{}},
	{"limit", "what limit prints", limitView{}},
	{"history", "what history prints; each line of it with --follow has one of the items", []entryView{}},
	{"doctor", "what doctor prints", doctorView{}},
	{"version", "what version prints", versionView{}},
	{"schema", "what schema prints without a NAME", []schemaView{}},
	{"man", "the pages that man has written", []string{}},
	{"error", "the last line of standard error of all commands, when they fail", errorView{}},
	{"webhook", "what serve --webhook posts", wire.Notice{}},
	{"event", "each line of standard error of all commands with -v, but for errors", event{}},
}

// schemaView is one item of the output of schema without a NAME.
type schemaView struct {
	Name  string `json:"name"`
	About string `json:"about" about:"text for people to read"`
}

func newSchemaCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema [NAME]",
		Short: "Print the JSON Schema of a command's --json output",
		Long: `Print the JSON Schema (draft 2020-12) of what a command prints with --json. Without
NAME, list the schemas. Later versions may add fields, so readers must ignore fields that
they do not know. See docs/stability.md.`,
		Example: "  leasehold schema\n  leasehold schema show",
		Args:    argNames("[NAME]"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			for _, d := range outputs {
				if len(args) == 0 {
					names = append(names, cobra.CompletionWithDesc(d.name, d.about))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listSchemas(a)
			}
			i := slices.IndexFunc(outputs, func(d output) bool { return d.name == args[0] })
			if i < 0 {
				return usageErrorf("there is no schema %q\nSee which there are: leasehold schema", plain(args[0]))
			}
			return printSchema(a, outputs[i])
		},
	}
}

func listSchemas(a *app) error {
	var views []schemaView
	for _, d := range outputs {
		views = append(views, schemaView{d.name, d.about})
	}
	return a.print(views, func(w io.Writer) {
		t := newTable(w)
		for _, v := range views {
			fmt.Fprintf(t, "%s\t%s\n", v.Name, v.About)
		}
		t.Flush()
	})
}

func printSchema(a *app, d output) error {
	s := schemaOf(reflect.TypeOf(d.value))
	s.Dialect, s.Title = "https://json-schema.org/draft/2020-12/schema", "leasehold: "+d.about
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return a.output(append(text, '\n'))
}

// A schema is the part of JSON Schema that the views need.
type schema struct {
	Dialect     string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        string             `json:"type"`
	Pattern     string             `json:"pattern,omitempty"`
	Minimum     *int               `json:"minimum,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Others      *schema            `json:"additionalProperties,omitempty"`
}

// schemaOf returns the schema of a type of the views. It panics for a type that they do not use.
func schemaOf(t reflect.Type) *schema {
	switch t.Kind() {
	case reflect.String:
		return &schema{Type: "string"}
	case reflect.Bool:
		return &schema{Type: "boolean"}
	case reflect.Int, reflect.Int64:
		return &schema{Type: "integer"}
	case reflect.Float64: // a number of seconds
		return &schema{Type: "number", Minimum: new(int)}
	case reflect.Pointer: // the field may be absent
		return schemaOf(t.Elem())
	case reflect.Slice:
		return &schema{Type: "array", Items: schemaOf(t.Elem())}
	case reflect.Map:
		return &schema{Type: "object", Others: schemaOf(t.Elem())}
	case reflect.Struct:
		return schemaOfStruct(t)
	}
	panic("no view has a " + t.String())
}

func schemaOfStruct(t reflect.Type) *schema {
	s := &schema{Type: "object", Properties: map[string]*schema{}}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		var p *schema
		if strings.Contains(options, "string") { // a number that may exceed the integers of most readers
			p = &schema{Type: "string", Pattern: "^[0-9]+$"}
		} else {
			p = schemaOf(f.Type)
		}
		p.Description = f.Tag.Get("about")
		if all := f.Tag.Get("enum"); all != "" {
			p.Enum = strings.Split(all, ",")
		}
		s.Properties[name] = p
		if !strings.Contains(options, "omit") { // omitempty or omitzero
			s.Required = append(s.Required, name)
		}
	}
	return s
}
