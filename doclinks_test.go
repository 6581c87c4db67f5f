package leasehold_test

import (
	"go/ast"
	godoc "go/doc/comment"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What a doc comment names by a link is there, and a name that can be nothing else, as ErrLost
// or driver.Features, is a link where a comment first has it.
func TestDocsLinkWhatTheyName(t *testing.T) {
	all := parsed(t)
	for dir, p := range all {
		if strings.Contains(dir, "internal") || p.files[0].Name.Name == "main" {
			continue
		}
		for _, c := range p.comments() {
			for _, wrong := range p.unlinked(all, c) {
				t.Errorf("%s: the doc of %s: %s", dir, c.of, wrong)
			}
		}
	}
}

// A pkg is a package of this repository, with what it exports: names, and members by their type.
type pkg struct {
	files   []*ast.File
	exports map[string]bool
	imports map[string]string // the folder of each package of ours, by its name here
}

func parsed(t *testing.T) map[string]*pkg {
	t.Helper()
	all := map[string]*pkg{}
	for dir, files := range packages(t) {
		p := &pkg{files: files, exports: map[string]bool{}, imports: map[string]string{}}
		for _, f := range files {
			for _, decl := range f.Decls {
				p.export(decl)
			}
			for _, i := range f.Imports {
				p.imported(i)
			}
		}
		all[dir] = p
	}
	return all
}

func (p *pkg) imported(i *ast.ImportSpec) {
	full, _ := strconv.Unquote(i.Path.Value)
	if dir, ok := strings.CutPrefix(full, "github.com/leasehold-go/leasehold"); ok {
		p.imports[path.Base(full)] = filepath.Clean("." + dir)
	}
}

func (p *pkg) export(decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if of := receiver(d); of != "" {
			p.exports[of+"."+d.Name.Name] = true
		} else {
			p.exports[d.Name.Name] = true
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range s.Names {
					p.exports[name.Name] = true
				}
			case *ast.TypeSpec:
				p.exports[s.Name.Name] = true
				for _, member := range members(s.Type) {
					p.exports[s.Name.Name+"."+member] = true
				}
			}
		}
	}
}

func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	var name string
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name
		}
		return name == ""
	})
	return name
}

func members(typ ast.Expr) (names []string) {
	var list *ast.FieldList
	switch typ := typ.(type) {
	case *ast.StructType:
		list = typ.Fields
	case *ast.InterfaceType:
		list = typ.Methods
	default:
		return nil
	}
	for _, field := range list.List {
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
	}
	return names
}

// A docComment is one that is shown as text, with links: those of fields are shown as code.
type docComment struct {
	of   string
	own  []string // what it may name without a link: itself, and what it belongs to
	text *ast.CommentGroup
}

func (p *pkg) comments() (all []docComment) {
	for _, f := range p.files {
		all = append(all, docComment{"the package", nil, f.Doc})
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) {
					of := receiver(d)
					all = append(all, docComment{d.Name.Name, []string{d.Name.Name, of, of + "." + d.Name.Name}, d.Doc})
				}
			case *ast.GenDecl:
				all = append(all, ofSpecs(d)...)
			}
		}
	}
	return slices.DeleteFunc(all, func(c docComment) bool { return c.text == nil })
}

func ofSpecs(d *ast.GenDecl) (all []docComment) {
	for _, spec := range d.Specs {
		doc := d.Doc
		switch s := spec.(type) {
		case *ast.ValueSpec:
			if s.Names[0].IsExported() && !d.Lparen.IsValid() {
				all = append(all, docComment{s.Names[0].Name, []string{s.Names[0].Name}, doc})
			}
		case *ast.TypeSpec:
			if s.Doc != nil {
				doc = s.Doc
			}
			if s.Name.IsExported() {
				all = append(all, docComment{s.Name.Name, []string{s.Name.Name}, doc})
			}
		}
	}
	return all
}

var (
	docLink = regexp.MustCompile(`\[\*?([A-Za-z]\w*(?:\.[A-Z]\w*)*)\]`)
	docName = regexp.MustCompile(`[A-Za-z]\w*(?:\.[A-Z]\w*)*`)
)

// unlinked is what is wrong with the links of a comment.
func (p *pkg) unlinked(all map[string]*pkg, c docComment) (wrong []string) {
	linked := map[string]bool{}
	for _, text := range paragraphs(c.text.Text()) {
		for _, l := range docLink.FindAllStringSubmatch(text, -1) {
			linked[l[1]] = true
			if !p.has(all, l[1]) && !fromElsewhere(l[1]) {
				wrong = append(wrong, "["+l[1]+"] is not there")
			}
		}
	}
	for _, text := range paragraphs(c.text.Text()) {
		for _, name := range docName.FindAllString(docLink.ReplaceAllString(text, ""), -1) {
			if p.has(all, name) && !linked[name] && !slices.Contains(c.own, name) && plain(name) {
				wrong = append(wrong, name+" is no link: ["+name+"]")
				linked[name] = true
			}
		}
	}
	return wrong
}

// paragraphs is the text of a comment without its code and its headings.
func paragraphs(text string) (all []string) {
	var printer godoc.Printer
	for _, b := range new(godoc.Parser).Parse(text).Content {
		switch b.(type) {
		case *godoc.Paragraph, *godoc.List:
			all = append(all, string(printer.Comment(&godoc.Doc{Content: []godoc.Block{b}})))
		}
	}
	return all
}

// has reports whether name is exported here or, with its package before it, where that is imported.
func (p *pkg) has(all map[string]*pkg, name string) bool {
	if p.exports[name] {
		return ast.IsExported(name)
	}
	from, rest, ok := strings.Cut(name, ".")
	other := all[p.imports[from]]
	return ok && p.imports[from] != "" && other != nil && other.exports[rest] || p.imports[name] != "" && !ok
}

// plain reports whether a name can be no word of a sentence: it has a dot, or a capital within
// and is no engine's.
func plain(name string) bool {
	if slices.Contains([]string{"SQLite", "MySQL", "MariaDB"}, name) {
		return false
	}
	return strings.Contains(name, ".") || strings.ContainsFunc(name[1:], func(r rune) bool { return r >= 'A' && r <= 'Z' }) && strings.ToUpper(name) != name
}

// fromElsewhere reports whether a link is into another repository or the standard library, which
// is not looked into here.
func fromElsewhere(name string) bool {
	from, _, dotted := strings.Cut(name, ".")
	return dotted && from == strings.ToLower(from)
}
