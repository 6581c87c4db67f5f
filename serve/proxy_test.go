package serve_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/leasehold-go/leasehold/serve"
)

// A proxy's header counts on connections from its own addresses and on no others, whatever other
// headers say about forwarding.
func TestProxyUsers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access")
	text := fmt.Sprintf(`{"clients":[{"name":"ops","tokens":["%064x"],"proxy_users":["anna@example.com","ops"],"rules":[{"prefix":"","rights":["view"]}]}]}`, 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(trusts bool) *serve.Access {
		access, err := serve.ReadAccess(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if trusts {
			from := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::1/128")}
			if err := access.TrustProxy("x-remote-user", from); err != nil {
				t.Fatal(err)
			}
		}
		return access
	}
	const anna = "anna@example.com"
	for what, c := range map[string]struct {
		trusts  bool
		from    string
		headers []string
		want    string
	}{
		"the proxy":                          {true, "10.1.2.3:5000", []string{"X-Remote-User", anna}, "ops (anna@example.com)"},
		"the proxy, by IPv6":                 {true, "[fd00::1]:5000", []string{"X-Remote-User", anna}, "ops (anna@example.com)"},
		"the proxy, by IPv4 in IPv6":         {true, "[::ffff:10.1.2.3]:5000", []string{"X-Remote-User", anna}, "ops (anna@example.com)"},
		"a user of the client's name":        {true, "10.1.2.3:5000", []string{"X-Remote-User", "ops"}, "ops"},
		"somebody else":                      {true, "10.2.0.1:5000", []string{"X-Remote-User", anna}, ""},
		"somebody else, as if forwarded":     {true, "10.2.0.1:5000", []string{"X-Remote-User", anna, "X-Forwarded-For", "10.1.2.3", "X-Real-Ip", "10.1.2.3", "Forwarded", "for=10.1.2.3"}, ""},
		"the proxy, of somebody unknown":     {true, "10.1.2.3:5000", []string{"X-Remote-User", "eve"}, ""},
		"the proxy, of nobody":               {true, "10.1.2.3:5000", []string{"X-Remote-User", ""}, ""},
		"the proxy, of two":                  {true, "10.1.2.3:5000", []string{"X-Remote-User", anna, "X-Remote-User", "ops"}, ""},
		"the proxy, by another header":       {true, "10.1.2.3:5000", []string{"X_Remote_User", anna}, ""},
		"the proxy without a header":         {true, "10.1.2.3:5000", nil, ""},
		"a proxy that nobody has named":      {false, "10.1.2.3:5000", []string{"X-Remote-User", anna}, ""},
		"a wrong token through the proxy":    {true, "10.1.2.3:5000", []string{"X-Remote-User", anna, "Authorization", "Bearer x"}, ""},
		"an address that says not from whom": {true, "@", []string{"X-Remote-User", anna}, ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/v1/me", nil)
		r.RemoteAddr = c.from
		for i := 0; i < len(c.headers); i += 2 {
			r.Header[c.headers[i]] = append(r.Header[c.headers[i]], c.headers[i+1])
		}
		client, err := read(c.trusts).Client(r)
		if got := ""; err == nil {
			if got = client.Name; got != c.want || client.By != "proxy" {
				t.Errorf("%s: known as %s, by %s", what, got, client.By)
			}
		} else if c.want != "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, wrong := range []string{`"proxy_users":[""]`, `"proxy_users":["a","a"]`, `"proxy_users":"a"`} {
		if err := os.WriteFile(path, []byte(`{"clients":[{"name":"ops",`+wrong+`,"rules":[]}]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := serve.ReadAccess(path, nil); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
	if err := new(serve.Access).TrustProxy("", nil); err == nil {
		t.Error("a proxy without a header is trusted")
	}
}
