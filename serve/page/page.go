// Package page is the console: files for a browser, which ask the service that they came from. It
// needs no build step and asks no other host.
package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

//go:embed index.html *.css *.js parts views words vendor
var files embed.FS

// policy lets the console run its own files and call its own service. Nobody may frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// kinds are the content types by file extension. Other files are not served.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".mjs":  "text/javascript; charset=utf-8",
	".txt":  "text/plain; charset=utf-8",
}

// served returns the files by path; index.html is at "/". They are read and hashed once, by programs that serve them:
// others that link this package start without.
var served = sync.OnceValue(read)

// A file is one file of the console.
type file struct {
	kind, tag string
	text      []byte
}

func read() map[string]file {
	all := map[string]file{}
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		kind := kinds[path.Ext(name)]
		if err != nil || entry.IsDir() || kind == "" {
			return err
		}
		text, err := files.ReadFile(name)
		if name == "vendor/hooks.mjs" {
			// A browser resolves a bare module name only by an import map, and the policy forbids
			// one in the page.
			text = bytes.Replace(text, []byte(`from"preact"`), []byte(`from"./preact.mjs"`), 1)
		}
		at := "/" + strings.TrimSuffix(name, "index.html")
		all[at] = file{kind, fmt.Sprintf(`"%x"`, sha256.Sum256(text)), text}
		return err
	})
	if err != nil {
		panic(err) // impossible: the files are embedded
	}
	return all
}

// Has reports whether a path belongs to the console. Its files reveal nothing about locks.
func Has(path string) bool {
	_, ok := served()[path]
	return ok
}

// Register adds the console's files to mux: the console is at "/".
func Register(mux *http.ServeMux) {
	for path, f := range served() {
		if path == "/" {
			path = "/{$}"
		}
		mux.Handle("GET "+path, f)
	}
}

// ServeHTTP implements [http.Handler].
func (f file) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // another version of the service may have other files
	h.Set("ETag", f.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.text))
}
