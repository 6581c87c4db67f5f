package served

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/claimtest"
	"github.com/leasehold-go/leasehold/internal/servers"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// TestStoreThatAnswersAndGrantsNothing: it is a no with its reason, the instance is not ready unless what is held is
// renewed, and all is well again when the store is.
func TestStoreThatAnswersAndGrantsNothing(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		code  string
		start func(t *testing.T) (store string, refuse, grant func())
	}{
		"redis replica": {wire.CodeReadOnly, func(t *testing.T) (string, func(), func()) {
			r := servers.StartRedis(t)
			return "redis://" + r.Addr(), func() { r.Must(t, "REPLICAOF", "127.0.0.1", "1") }, func() { r.Must(t, "REPLICAOF", "NO", "ONE") }
		}},
		"redis without memory": {wire.CodeFull, func(t *testing.T) (string, func(), func()) {
			r := servers.StartRedis(t)
			return "redis://" + r.Addr(), func() { r.Must(t, "CONFIG", "SET", "maxmemory", "1") }, func() { r.Must(t, "CONFIG", "SET", "maxmemory", "0") }
		}},
		"postgresql read-only": {wire.CodeReadOnly, func(t *testing.T) (string, func(), func()) {
			p := servers.StartPostgres(t)
			set := func(to string) func() {
				return func() {
					p.Must(t, "ALTER SYSTEM SET default_transaction_read_only = "+to)
					p.Must(t, "SELECT pg_reload_conf()")
				}
			}
			return "postgres://postgres@" + p.Addr() + "/postgres", set("on"), set("off")
		}},
		"etcd without space": {wire.CodeFull, func(t *testing.T) (string, func(), func()) {
			e := servers.StartEtcd(t, servers.EtcdCurrent)
			alarm := func(action int) func() {
				return func() {
					body := fmt.Sprintf(`{"action":%d,"memberID":%q,"alarm":1}`, action, memberOf(t, e.Addr()))
					resp, err := http.Post("http://"+e.Addr()+"/v3/maintenance/alarm", "application/json", strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					resp.Body.Close()
					if resp.StatusCode != http.StatusOK {
						t.Fatal(resp.Status)
					}
				}
			}
			const activate, disarm = 1, 2
			return "etcd://" + e.Addr(), alarm(activate), alarm(disarm)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, refuse, grant := one.start(t)
			i := &instance{command: os.Getenv(binaryEnv), store: store, port: servers.FreePorts(t, 1)[0]}
			i.start(t)
			t.Cleanup(i.kill)
			i.must(t, wire.Acquire, `{"name":"before","owner":"o","ttl_ms":600000}`)
			refuse()
			owners := 0
			claimtest.Eventually(t, "a refusal with its reason", func() bool {
				owners++
				status, a := i.call(t, wire.Acquire, `{"name":"n","owner":"o%d","ttl_ms":2000}`, owners)
				return status == http.StatusServiceUnavailable && a.Outcome == wire.Refused && a.Code == one.code
			})
			full := one.code == wire.CodeFull
			claimtest.Eventually(t, "the instance says so", func() bool {
				resp, err := i.asks()
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				var a wire.Answer
				if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
					t.Fatal(err)
				}
				return (resp.StatusCode == http.StatusOK) == full && a.Warning+a.Error != ""
			})
			if full {
				i.must(t, wire.Renew, `{"name":"before","owner":"o","ttl_ms":600000}`)
			}
			grant()
			i.becomesReady(t)
			claimtest.Eventually(t, "a grant", func() bool {
				owners++
				status, _ := i.call(t, wire.Acquire, `{"name":"after","owner":"o%d","ttl_ms":600000}`, owners)
				return status == http.StatusOK
			})
		})
	}
}

// memberOf is the id of the only member of an etcd cluster.
func memberOf(t *testing.T, addr string) string {
	t.Helper()
	resp, err := http.Post("http://"+addr+"/v3/cluster/member/list", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var all struct{ Members []struct{ ID string } }
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil || len(all.Members) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all.Members[0].ID
}
