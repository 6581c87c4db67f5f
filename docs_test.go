package leasehold_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every package says what it is for, and those that others import say it of all they export.
func TestDocsSayWhatIsExported(t *testing.T) {
	for dir, files := range packages(t) {
		if !anyDoc(files) {
			t.Errorf("%s: the package has no doc", dir)
		}
		if strings.Contains(dir, "internal") || files[0].Name.Name == "main" {
			continue
		}
		for _, f := range files {
			for _, name := range undocumented(f) {
				t.Errorf("%s: %s has no doc", dir, name)
			}
		}
	}
}

// packages is the parsed files of each package of each module, but for tests and for the
// modules that nobody imports.
func packages(t *testing.T) map[string][]*ast.File {
	t.Helper()
	all := map[string][]*ast.File{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "e2e" || path == "bench" || d.Name() == "testdata" || len(path) > 1 && path[0] == '.'):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		all[filepath.Dir(path)] = append(all[filepath.Dir(path)], f)
		return err
	})
	if err != nil || len(all) < 10 {
		t.Fatalf("found %d packages: %v", len(all), err)
	}
	return all
}

func anyDoc(files []*ast.File) bool {
	return slices.ContainsFunc(files, func(f *ast.File) bool { return f.Doc != nil })
}

// undocumented is what f exports without a word on it.
func undocumented(f *ast.File) (names []string) {
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && d.Name.IsExported() && exportedReceiver(d) {
				names = append(names, "func "+d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				names = append(names, undocumentedSpec(d, spec)...)
			}
		}
	}
	return names
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	name, ok := typ.(*ast.Ident)
	return ok && name.IsExported()
}

// undocumentedSpec takes the doc of a whole group for each of its names.
func undocumentedSpec(d *ast.GenDecl, spec ast.Spec) (names []string) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
				names = append(names, name.Name)
			}
		}
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return nil
		}
		if d.Doc == nil && s.Doc == nil && s.Comment == nil {
			names = append(names, s.Name.Name)
		}
		for _, field := range undocumentedFields(s.Type) {
			names = append(names, s.Name.Name+"."+field)
		}
	}
	return names
}

func undocumentedFields(typ ast.Expr) (names []string) {
	var fields *ast.FieldList
	switch typ := typ.(type) {
	case *ast.StructType:
		fields = typ.Fields
	case *ast.InterfaceType:
		if fields = typ.Methods; len(fields.List) == 1 { // its doc is that of the method
			return nil
		}
	default:
		return nil
	}
	for _, field := range fields.List {
		for _, name := range field.Names {
			if name.IsExported() && field.Doc == nil && field.Comment == nil {
				names = append(names, fmt.Sprint(name))
			}
		}
	}
	return names
}

// Go code in a page is that of a tested file, which a line before it names, but for comments. So is
// other code with such a line.
func TestDocsShowTestedCode(t *testing.T) {
	blocks := regexp.MustCompile("(?m)^(.*)\n```(go|python|java)\n((?s).*?)^```")
	from := regexp.MustCompile(`^<!-- from (\w+) in (\S+) -->$`)
	for _, page := range pages(t) {
		for _, b := range blocks.FindAllStringSubmatch(read(t, page), -1) {
			source := from.FindStringSubmatch(b[1])
			if source == nil {
				if b[2] == "go" {
					t.Errorf("%s: no line such as <!-- from Example in example_test.go --> before\n%s", page, b[3])
				}
				continue
			}
			code := strings.Join(statements(b[3]), "\n")
			text := read(t, source[2])
			text = text[strings.LastIndex(text[:max(strings.Index(text, source[1]), 0)], "\n")+1:]
			if !strings.Contains("\n"+strings.Join(statements(text), "\n")+"\n", "\n"+code+"\n") {
				t.Errorf("%s: %s in %s is not\n%s", page, source[1], source[2], b[3])
			}
		}
	}
}

// pages are those that people read.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// A link of a page leads to a file, and to a heading of it.
func TestLinksLead(t *testing.T) {
	for _, page := range pages(t) {
		for _, l := range link.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, page), ""), -1) {
			file, heading, _ := strings.Cut(l[1], "#")
			target := filepath.Join(filepath.Dir(page), file)
			if file == "" {
				target = page
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if heading != "" && !headings(t, target)[heading] {
				t.Errorf("%s: %s has no heading #%s", page, target, heading)
			}
		}
	}
}

// headings are the anchors that GitHub gives the headings of a page.
func headings(t *testing.T, page string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(fenced.ReplaceAllString(read(t, page), ""), -1) {
		anchor := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
		all[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	return all
}

// A decision has a page with its three parts, and the index names it once, by its title.
func TestDecisionsAreIndexed(t *testing.T) {
	found, err := filepath.Glob("docs/decisions/*.md")
	if err != nil {
		t.Fatal(err)
	}
	const index = "docs/decisions/README.md"
	for _, page := range found {
		if page == index {
			continue
		}
		text := read(t, page)
		title, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		if n := strings.Count(read(t, index), fmt.Sprintf("- [%s](%s)\n", title, filepath.Base(page))); n != 1 {
			t.Errorf("%s names %s, %q, %d times", index, page, title, n)
		}
		for _, part := range []string{"Context", "Decision", "Consequence"} {
			if !strings.Contains(text, "\n**"+part+".** ") {
				t.Errorf("%s has no %s", page, part)
			}
		}
	}
}

// statements are the lines of code without those that are comments or empty, and without indentation.
func statements(code string) (lines []string) {
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			lines = append(lines, line)
		}
	}
	return lines
}

// What AGENTS.md names as the place for a change is there.
func TestPlacesOfChangesExist(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "AGENTS.md"), "\n## Where a change goes\n")
	places := 0
	for _, row := range regexp.MustCompile(`(?m)^\|.*?\|(.*)\|$`).FindAllStringSubmatch(table, -1) {
		for _, place := range span.FindAllStringSubmatch(row[1], -1) {
			places++
			if found, err := filepath.Glob(place[1]); err != nil || len(found) == 0 {
				t.Errorf("AGENTS.md names %s, which is not there", place[1])
			}
		}
	}
	if places < 50 {
		t.Errorf("AGENTS.md names %d places: its table has more", places)
	}
}

// The README says what a newcomer needs, and no more.
func TestReadmeIsShort(t *testing.T) {
	if n := len(strings.Fields(read(t, "README.md"))); n > 700 {
		t.Errorf("README.md has %d words", n)
	}
}

// TestLayoutIsWhole compares the layout in AGENTS.md with the folders that are committed.
func TestLayoutIsWhole(t *testing.T) {
	_, layout, _ := strings.Cut(read(t, "AGENTS.md"), "## Layout\n\n```\n")
	layout, _, found := strings.Cut(layout, "```")
	if !found {
		t.Fatal("AGENTS.md has no layout")
	}
	told := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)([a-z0-9]+)/(?:\s|$)`).FindAllStringSubmatch(layout, -1) {
		told[m[1]] = true
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || strings.HasPrefix(name, ".") || name == "dist" {
			continue
		}
		if !told[name] {
			t.Errorf("the layout in AGENTS.md does not name %s/", name)
		}
		delete(told, name)
	}
	for name := range told {
		t.Errorf("the layout in AGENTS.md names %s/, which is not there", name)
	}
}

// TestFileListsAreWhole: a package comment that lists its files names all of them, and no others.
func TestFileListsAreWhole(t *testing.T) {
	docs, err := filepath.Glob("*/*/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	lists := 0
	for _, doc := range docs {
		_, list, has := strings.Cut(read(t, doc), "\n// # Files\n")
		if !has {
			continue
		}
		lists++
		dir := filepath.Dir(doc)
		var named []string
		for _, line := range regexp.MustCompile(`(?m)^//\t(.*?)(?:  |$)`).FindAllStringSubmatch(list, -1) {
			named = append(named, strings.Split(line[1], ", ")...)
		}
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		used := make([]bool, len(named))
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".go")
			if strings.HasSuffix(name, "_test") || name == "doc" {
				continue
			}
			found := false
			for i, pattern := range named {
				if is, _ := filepath.Match(pattern, name); is {
					used[i], found = true, true
				}
			}
			if !found {
				t.Errorf("%s does not list %s.go", doc, name)
			}
		}
		for i, name := range named {
			if !used[i] {
				t.Errorf("%s lists %s, which is not there", doc, name)
			}
		}
	}
	if lists < 4 {
		t.Errorf("%d packages list their files", lists)
	}
}
