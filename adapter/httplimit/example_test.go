package httplimit_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/httplimit"
	"github.com/leasehold-go/leasehold/memory"
)

// At most five requests of a tenant are served at once, over all instances of the service.
func Example() {
	locks, err := leasehold.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "served") })

	limit := httplimit.Limit{
		Locks: locks,
		Name:  func(r *http.Request) string { return "api/" + r.Header.Get("X-Tenant") },
		Most:  5,
	}
	handler := limit.Handler(api)

	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Tenant", "7")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Body)
	// Output: 200 served
}
