package serve_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A program with its own web server can show its locks there, beneath a path: the page and the calls
// refer to each other by relative addresses. Options.Client decides who may view and evict.
func ExampleNew_beneath() {
	d := memory.New()
	defer d.Close()
	locks, err := serve.New(d, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	mux := http.NewServeMux()
	mux.Handle("/debug/locks/", http.StripPrefix("/debug/locks", locks))
	web := httptest.NewServer(mux) // in place of http.ListenAndServe
	defer web.Close()

	for _, path := range []string{"/debug/locks/", "/debug/locks/v1/locks"} {
		resp, err := http.Get(web.URL + path)
		if err != nil {
			fmt.Println(err)
			return
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		first, _, _ := strings.Cut(string(text), "\n")
		fmt.Println(resp.StatusCode, first, err)
	}
	// Output:
	// 200 <!doctype html> <nil>
	// 200 {"locks":[]} <nil>
}
