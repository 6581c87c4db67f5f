package page

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// Files of others are as they were published, with their licences.
func TestVendoredFilesAreAsPublished(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("vendor/VERSIONS")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"VERSIONS": true}
	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 6 {
			t.Fatalf("%q has not 6 fields", line)
		}
		known[f[0]] = true
		text, err := os.ReadFile("vendor/" + f[0])
		if sum := fmt.Sprintf("%x", sha256.Sum256(text)); err != nil || sum != f[5] {
			t.Errorf("%s: %s (%v), want %s", f[0], sum, err, f[5])
		}
		if !known[f[1]+".LICENSE.txt"] {
			known[f[1]+".LICENSE.txt"] = false // until its line is found
		}
	}
	entries, err := os.ReadDir("vendor")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !known[entry.Name()] {
			t.Errorf("%s is not in VERSIONS", entry.Name())
		}
	}
}

// A module imports others by paths that the service has: there is no import map.
func TestModulesImportWhatIsServed(t *testing.T) {
	t.Parallel()
	imports := regexp.MustCompile(`\bfrom\s*['"]([^'"]+)['"]`)
	for at, f := range served() {
		if !strings.HasPrefix(f.kind, "text/javascript") {
			continue
		}
		for _, m := range imports.FindAllStringSubmatch(string(f.text), -1) {
			if to := path.Join(path.Dir(at), m[1]); !strings.HasPrefix(m[1], ".") || !Has(to) {
				t.Errorf("%s imports %q", at, m[1])
			}
		}
	}
	// The page requests all modules at once, and not one after another as they are found.
	index := string(served()["/"].text)
	for at, f := range served() {
		if want := fmt.Sprintf(`href="%s"`, at[1:]); strings.HasPrefix(f.kind, "text/javascript") && !strings.Contains(index, want) {
			t.Errorf("index.html does not preload %s", at)
		}
	}
}

func TestFilesAreValidated(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	Register(mux)
	ask := func(path, tag string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("If-None-Match", tag)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	for path := range served() {
		first := ask(path, "")
		if first.Code != 200 || first.Body.Len() == 0 || !strings.Contains(first.Header().Get("Content-Security-Policy"), "script-src 'self'; style-src 'self'") {
			t.Errorf("%s: %d %v", path, first.Code, first.Header())
		}
		if again := ask(path, first.Header().Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("%s, which the browser has: %d", path, again.Code)
		}
	}
	if Has("/index.html") || Has("/vendor/VERSIONS") || Has("/page.go") {
		t.Error("files are served that are not the console's")
	}
}

// Each text of the console exists in both languages.
func TestWordsAreComplete(t *testing.T) {
	t.Parallel()
	words := map[string]map[string]bool{}
	for _, language := range []string{"en", "zh"} {
		words[language] = map[string]bool{}
		for _, m := range regexp.MustCompile(`(?m)^  (\w+):`).FindAllStringSubmatch(string(served()["/words/"+language+".js"].text), -1) {
			words[language][m[1]] = true
		}
	}
	said := map[string]bool{}
	err := fs.WalkDir(files, ".", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) != ".js" || strings.HasPrefix(name, "words/") {
			return err
		}
		for _, m := range regexp.MustCompile(`\bsay\('(\w+)'`).FindAllStringSubmatch(string(served()["/"+name].text), -1) {
			said[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for language, has := range words {
		for word := range said {
			if !has[word] {
				t.Errorf("%s has no %q", language, word)
			}
		}
		for word := range has {
			if !words["en"][word] || !words["zh"][word] {
				t.Errorf("%q is in one language alone", word)
			}
		}
	}
	if len(said) < 50 {
		t.Errorf("%d words are said", len(said))
	}
}
