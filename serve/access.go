package serve

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/reread"
	"github.com/leasehold-go/leasehold/internal/wire"
)

// A Right is what a client may do with the names that begin with a prefix.
type Right string

// The rights. None contains another.
const (
	View  Right = "view"  // show, list, events; the holder's name in refusals
	Lock  Right = "lock"  // acquire, renew, release, note, reserve
	Evict Right = "evict" // evict, remove waiters, reset, set limits, and lift fences
)

// A Rule grants rights to the names that begin with a prefix; "" is all.
type Rule struct {
	Prefix string  `json:"prefix"` // of names; "": all names
	Rights []Right `json:"rights"` // for these names; rules add up
}

// A Client is a caller, as the server knows it.
type Client struct {
	Name  string // in the log
	Rules []Rule // what it may do; none: nothing
	By    string // how it was identified: token, certificate or proxy; "": not stated
}

// May reports whether the client has a right to a name.
func (c *Client) May(right Right, name string) bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool {
		return strings.HasPrefix(name, r.Prefix) && slices.Contains(r.Rights, right)
	})
}

// views returns the shortest prefixes that cover all names which start with prefix and which the
// client may view, in order. Each of these names has exactly one of them.
func (c *Client) views(prefix string) (all []string) {
	for _, r := range c.Rules {
		switch {
		case !slices.Contains(r.Rights, View):
		case strings.HasPrefix(prefix, r.Prefix):
			return []string{prefix}
		case strings.HasPrefix(r.Prefix, prefix):
			all = append(all, r.Prefix)
		}
	}
	slices.Sort(all)
	kept := 0
	for _, one := range all {
		if kept == 0 || !strings.HasPrefix(one, all[kept-1]) {
			all[kept] = one
			kept++
		}
	}
	return all[:kept]
}

// anybody is the client of a server without access rules. It may do everything.
var anybody = &Client{Rules: []Rule{{"", []Right{View, Lock, Evict}}}, By: wire.ByOpen}

// ErrUnknownClient means that a request has neither a known token nor a known certificate.
// ErrWrongToken means that its token is unknown.
var (
	ErrUnknownClient = errors.New("the access token or certificate is missing or unknown")
	ErrWrongToken    = fmt.Errorf("%w: the token is wrong", ErrUnknownClient)
)

// An Access is a file that says who may do what. It is reread when it changes.
//
//	{"clients": [{"name": "ci", "tokens": ["sha256 in hex"], "certificates": ["ci.internal"],
//	  "rules": [{"prefix": "ci/", "rights": ["view", "lock"]}]}]}
//
// With [Access.TrustProxy], "proxy_users" lists people whom a reverse proxy has signed in.
//
// The file has the SHA-256 of each token, in hex. That is safe only for tokens that are long and
// random. A certificate counts if its common name, a DNS name or a URI is listed, and the listener
// trusts its authority.
type Access struct {
	file  *reread.Files[*clients]
	proxy proxy
}

// clients are the clients from one reading of the file.
type clients struct {
	byToken, byCertificate, byProxyUser map[string]*Client
}

// ReadAccess reads the file at path. If a change cannot be read, it calls failed, and the earlier
// contents stay in force.
func ReadAccess(path string, failed func(error)) (*Access, error) {
	file, err := reread.New(recheck, failed, func(texts [][]byte) (*clients, error) { return readClients(path, texts[0]) }, path)
	if _, unread := errors.AsType[*os.PathError](err); unread {
		err = fmt.Errorf("read who may what: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return &Access{file: file}, nil
}

func readClients(path string, data []byte) (*clients, error) {
	var f struct {
		Clients []struct {
			Name         string   `json:"name"`
			Tokens       []string `json:"tokens"`
			Certificates []string `json:"certificates"`
			ProxyUsers   []string `json:"proxy_users"`
			Rules        []struct {
				Prefix *string `json:"prefix"` // required: a prefix left out by mistake would cover all names
				Rights []Right `json:"rights"`
			} `json:"rules"`
		} `json:"clients"`
	}
	if err := decode(data, &f); err != nil {
		return nil, fmt.Errorf("read who may what in %s: %w", path, withoutText(err))
	}
	all := &clients{map[string]*Client{}, map[string]*Client{}, map[string]*Client{}}
	for _, c := range f.Clients {
		one := &Client{Name: c.Name}
		for _, r := range c.Rules {
			if r.Prefix == nil {
				return nil, fmt.Errorf("read who may what in %s: client %.100q: a rule has no prefix: \"\" is all names", path, c.Name)
			}
			one.Rules = append(one.Rules, Rule{*r.Prefix, r.Rights})
		}
		if err := errors.Join(all.add(one, c.Tokens, c.Certificates), all.addUsers(one, c.ProxyUsers)); err != nil {
			return nil, fmt.Errorf("read who may what in %s: client %.100q: %w", path, c.Name, err)
		}
	}
	return all, nil
}

// withoutText returns the error without the parts of the file that a JSON error quotes.
func withoutText(err error) error {
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		return errors.New("it is no JSON")
	}
	return err
}

func (all *clients) add(c *Client, tokens, certificates []string) error {
	if c.Name == "" {
		return errors.New("the name is missing")
	}
	for _, r := range c.Rules {
		for _, right := range r.Rights {
			if right != View && right != Lock && right != Evict {
				return fmt.Errorf("%.20q is no right", right)
			}
		}
	}
	for _, t := range tokens {
		sum, err := hex.DecodeString(t)
		if err != nil || len(sum) != sha256.Size {
			return errors.New("a token is no SHA-256 in hex")
		}
		if all.byToken[string(sum)] != nil {
			return errors.New("another client has the same token")
		}
		all.byToken[string(sum)] = c.knownBy(wire.ByToken)
	}
	for _, name := range certificates {
		if name == "" || all.byCertificate[name] != nil {
			return fmt.Errorf("the certificate %.100q is empty, or another client's", name)
		}
		all.byCertificate[name] = c.knownBy(wire.ByCertificate)
	}
	return nil
}

// knownBy returns the client, with how it was identified.
func (c *Client) knownBy(by string) *Client {
	known := *c
	known.By = by
	return &known
}

// areValid reports whether certificates are still valid. They were when the connection began, which
// may be months ago.
func areValid(chain []*x509.Certificate, now time.Time) bool {
	return !slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return now.Before(c.NotBefore) || now.After(c.NotAfter) })
}

// Client implements [Options.Client].
func (a *Access) Client(r *http.Request) (*Client, error) {
	all := a.file.Get()
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		sum := sha256.Sum256([]byte(token))
		if c := all.byToken[string(sum[:])]; c != nil {
			return c, nil
		}
		return nil, ErrWrongToken
	}
	if user, signedIn := a.proxy.user(r); signedIn {
		if c := all.byProxyUser[user]; c != nil {
			return c, nil
		}
		return nil, ErrUnknownClient
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && areValid(r.TLS.VerifiedChains[0], time.Now()) {
		leaf := r.TLS.VerifiedChains[0][0]
		names := append([]string{leaf.Subject.CommonName}, leaf.DNSNames...)
		for _, u := range leaf.URIs {
			names = append(names, u.String())
		}
		for _, name := range names {
			if c := all.byCertificate[name]; c != nil {
				return c, nil
			}
		}
	}
	return nil, ErrUnknownClient
}
