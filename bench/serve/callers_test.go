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
	text, _, err := call(ctx, c, http.MethodPost, url, body)
	return text, err
}

func call(ctx context.Context, c *http.Client, method, url, body string) ([]byte, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", url, resp.Status, text)
	}
	return text, resp.Header, err
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

// locks are those of another service, each of which needs a session, here one that outlives its part of the benchmark.
type locks interface {
	session(ctx context.Context) (id string, err error)
	take(ctx context.Context, name, session string) (held string, err error)
	give(ctx context.Context, name, held string) error
}

// each takes and gives with a session for each time.
func each(ctx context.Context, l locks) cycle {
	return cycle{
		take: func(name string) (string, error) {
			session, err := l.session(ctx)
			if err != nil {
				return "", err
			}
			return l.take(ctx, name, session)
		},
		give: func(name, held string) error { return l.give(ctx, name, held) },
	}
}

// kept is each with one session for all of one user's cycles, as one that renews would have.
func kept(ctx context.Context, l locks) cycle {
	session := ""
	return cycle{
		take: func(name string) (held string, err error) {
			if session == "" {
				if session, err = l.session(ctx); err != nil {
					return "", err
				}
			}
			return l.take(ctx, name, session)
		},
		give: func(name, held string) error { return l.give(ctx, name, held) },
	}
}

// gateway is etcd's own lock service, whose sessions are leases.
type gateway struct {
	client *http.Client
	url    string
}

func (g gateway) session(ctx context.Context) (string, error) {
	var granted struct{ ID string }
	text, err := post(ctx, g.client, g.url+"/v3/lease/grant", `{"TTL":600}`)
	if err == nil {
		err = json.Unmarshal(text, &granted)
	}
	return granted.ID, err
}

func (g gateway) take(ctx context.Context, name, lease string) (key string, err error) {
	var locked struct{ Key string }
	text, err := post(ctx, g.client, g.url+"/v3/lock/lock", fmt.Sprintf(`{"name":%q,"lease":%q}`, base64.StdEncoding.EncodeToString([]byte(name)), lease))
	if err == nil {
		err = json.Unmarshal(text, &locked)
	}
	return locked.Key, err
}

func (g gateway) give(ctx context.Context, _, key string) error {
	_, err := post(ctx, g.client, g.url+"/v3/lock/unlock", fmt.Sprintf(`{"key":%q}`, key))
	return err
}

// sessions are Consul's. A waiter looks at the key until it changes, and asks again, as its guide to
// sessions has it.
type sessions struct {
	client *http.Client
	url    string
}

func (s sessions) session(ctx context.Context) (string, error) {
	var created struct{ ID string }
	text, _, err := call(ctx, s.client, http.MethodPut, s.url+"/v1/session/create", `{"TTL":"600s","Behavior":"delete"}`)
	if err == nil {
		err = json.Unmarshal(text, &created)
	}
	return created.ID, err
}

func (s sessions) key(name string) string { return s.url + "/v1/kv/" + name }

func (s sessions) take(ctx context.Context, name, session string) (string, error) {
	for {
		text, _, err := call(ctx, s.client, http.MethodPut, s.key(name)+"?acquire="+session, "held")
		if err != nil || strings.TrimSpace(string(text)) == "true" {
			return session, err
		}
		if err := s.free(ctx, name); err != nil {
			return "", err
		}
	}
}

// free returns when no session has the key.
func (s sessions) free(ctx context.Context, name string) error {
	for index := "0"; ; {
		text, header, err := call(ctx, s.client, http.MethodGet, s.key(name)+"?wait=30s&index="+index, "")
		if err != nil || !strings.Contains(string(text), `"Session"`) {
			return err
		}
		index = header.Get("X-Consul-Index")
	}
}

func (s sessions) give(ctx context.Context, name, session string) error {
	text, _, err := call(ctx, s.client, http.MethodPut, s.key(name)+"?release="+session, "")
	if err == nil && strings.TrimSpace(string(text)) != "true" {
		err = fmt.Errorf("release: %s", text)
	}
	return err
}
