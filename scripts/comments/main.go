// Comments writes the doc comments of Go files as Markdown, for scripts/prose: package comments,
// and those of exported names, fields and methods. Each line keeps its number.
//
//	go run ./scripts/comments FOLDER FILE...
//
// The text of FILE is FOLDER/FILE.md. Files of programs are left out.
package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	log.SetFlags(0)
	for _, name := range os.Args[2:] {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			log.Fatal(err)
		}
		if file.Name.Name == "main" {
			continue
		}
		p := page{fset: fset, lines: make([]string, fset.File(file.Pos()).LineCount())}
		p.file(file)
		to := filepath.Join(os.Args[1], name+".md")
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(to, []byte(strings.Join(p.lines, "\n")+"\n"), 0o666); err != nil {
			log.Fatal(err)
		}
	}
}

// A page is the text of one file.
type page struct {
	fset  *token.FileSet
	lines []string
}

func (p *page) file(f *ast.File) {
	p.add(f.Doc, "")
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type))) {
				p.add(d.Doc, "")
			}
		case *ast.GenDecl:
			p.decl(d)
		}
	}
}

func (p *page) decl(d *ast.GenDecl) {
	exported := false
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() {
				exported = true
				p.add(s.Doc, "")
				p.add(s.Comment, "- ")
				p.fields(s.Type)
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				if name.IsExported() {
					exported = true
					p.add(s.Doc, "- ")
					p.add(s.Comment, "- ")
					break
				}
			}
		}
	}
	if exported {
		p.add(d.Doc, "")
	}
}

// fields adds the exported fields of a struct, or the methods of an interface.
func (p *page) fields(t ast.Expr) {
	var list *ast.FieldList
	switch t := t.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	default:
		return
	}
	for _, f := range list.List {
		if len(f.Names) > 0 && f.Names[0].IsExported() {
			p.add(f.Doc, "- ")
			p.add(f.Comment, "- ")
			p.fields(f.Type)
		}
	}
}

// add puts a comment on its lines. A mark keeps it apart from the text of the line above.
func (p *page) add(c *ast.CommentGroup, mark string) {
	if c == nil {
		return
	}
	for _, one := range c.List {
		at := p.fset.Position(one.Pos()).Line - 1
		if text, ok := strings.CutPrefix(one.Text, "//"); ok && !strings.HasPrefix(text, "go:") {
			text = strings.TrimPrefix(text, " ")
			p.lines[at], mark = mark+text, ""
		}
	}
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}
