package serve_test

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/leasehold-go/leasehold/memory"
	"github.com/leasehold-go/leasehold/serve"
)

// A service can offer the locks beside its own paths. Callers choose owners, which identify their
// leases.
func Example() {
	d := memory.New() // any driver
	defer d.Close()
	locks, err := serve.New(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	server := httptest.NewServer(locks)
	defer server.Close()

	body := `{"name": "orders/42", "owner": "0123456789abcdef0123456789abcdef01234567", "ttl_ms": 10000}`
	answer, err := http.Post(server.URL+"/v1/acquire", "application/json", strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	var lease struct{ Outcome, Name string }
	if err := json.NewDecoder(answer.Body).Decode(&lease); err != nil {
		log.Fatal(err)
	}
	fmt.Println(lease.Outcome, lease.Name)
	// Output: granted orders/42
}
