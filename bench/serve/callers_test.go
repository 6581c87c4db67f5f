package serve_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// A cycle takes a name and gives it back, in two calls.
type cycle struct {
	// take waits until it holds, and returns what give needs.
	take func(name string) (held string, err error)
	give func(name, held string) error
}

// client has as many connections as there are calls at once, each kept.
func client(two bool) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(!two)
	protocols.SetUnencryptedHTTP2(two)
	return &http.Client{Transport: &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 10_000, Protocols: &protocols, DisableCompression: true}}
}

// post makes a call and reads what it says.
func post(ctx context.Context, c *http.Client, url, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", url, resp.Status, text)
	}
	return text, err
}

// nothing is two empty POSTs.
func nothing(ctx context.Context, c *http.Client, url string) cycle {
	call := func() error { _, err := post(ctx, c, url+empty, ""); return err }
	return cycle{
		take: func(string) (string, error) { return "", call() },
		give: func(string, string) error { return call() },
	}
}

var owners atomic.Int64

// ours takes and gives at the service. Who waits calls again until it holds.
func ours(ctx context.Context, c *http.Client, url string) cycle {
	return cycle{
		take: func(name string) (string, error) {
			owner := fmt.Sprintf("owner-%d-of-the-benchmark", owners.Add(1))
			for calls := int64(1); ; calls++ {
				_, err := post(ctx, c, url+"/v1/acquire", `{"name":"`+name+`","owner":"`+owner+`","ttl_ms":60000,"wait_ms":30000,"call":`+strconv.FormatInt(calls, 10)+`}`)
				if err == nil || !strings.Contains(err.Error(), " 409 ") {
					return owner, err
				}
			}
		},
		give: func(name, owner string) error {
			_, err := post(ctx, c, url+"/v1/release", `{"name":"`+name+`","owner":"`+owner+`"}`)
			return err
		},
	}
}

// gateway takes and gives at etcd's own lock service, with a lease for each time.
func gateway(ctx context.Context, c *http.Client, url string) cycle {
	return cycle{
		take: func(name string) (string, error) {
			lease, err := etcdLease(ctx, c, url)
			if err != nil {
				return "", err
			}
			return etcdTake(ctx, c, url, name, lease)
		},
		give: func(_, key string) error { return etcdGive(ctx, c, url, key) },
	}
}

// kept is gateway with one lease for all of one user's cycles, as one that renews would have.
func kept(ctx context.Context, c *http.Client, url string) cycle {
	lease := ""
	return cycle{
		take: func(name string) (held string, err error) {
			if lease == "" {
				if lease, err = etcdLease(ctx, c, url); err != nil {
					return "", err
				}
			}
			return etcdTake(ctx, c, url, name, lease)
		},
		give: func(_, key string) error { return etcdGive(ctx, c, url, key) },
	}
}

func etcdLease(ctx context.Context, c *http.Client, url string) (id string, err error) {
	var granted struct{ ID string }
	text, err := post(ctx, c, url+"/v3/lease/grant", `{"TTL":60}`)
	if err == nil {
		err = json.Unmarshal(text, &granted)
	}
	return granted.ID, err
}

func etcdTake(ctx context.Context, c *http.Client, url, name, lease string) (key string, err error) {
	var locked struct{ Key string }
	text, err := post(ctx, c, url+"/v3/lock/lock", fmt.Sprintf(`{"name":%q,"lease":%q}`, base64.StdEncoding.EncodeToString([]byte(name)), lease))
	if err == nil {
		err = json.Unmarshal(text, &locked)
	}
	return locked.Key, err
}

func etcdGive(ctx context.Context, c *http.Client, url, key string) error {
	_, err := post(ctx, c, url+"/v3/lock/unlock", fmt.Sprintf(`{"key":%q}`, key))
	return err
}
