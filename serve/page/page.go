// Package page is the page that shows a service's locks to people: files for a browser, which
// ask the service that they came from. It needs no build step and asks nobody else.
package page

import (
	"bytes"
	"embed"
	"net/http"
	"strings"
	"time"
)

//go:embed index.html page.css page.js words.js
var files embed.FS

// policy lets the page run its own files and ask its own service, and nobody frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Kinds of files, by their names.
var kinds = map[string]string{
	"index.html": "text/html; charset=utf-8",
	"page.css":   "text/css; charset=utf-8",
	"page.js":    "text/javascript; charset=utf-8",
	"words.js":   "text/javascript; charset=utf-8",
}

// Has reports whether a path is one of the page's, which say nothing of any lock.
func Has(path string) bool {
	_, ok := kinds[strings.TrimPrefix(path, "/")]
	return ok || path == "/"
}

// Register adds the page's files to mux: the page is at "/".
func Register(mux *http.ServeMux) {
	for name, kind := range kinds {
		path := "/" + name
		if name == "index.html" {
			path = "/{$}"
		}
		mux.HandleFunc("GET "+path, file(name, kind))
	}
}

func file(name, kind string) http.HandlerFunc {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", kind)
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache") // another version of the service has other files
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	}
}
