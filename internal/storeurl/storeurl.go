// Package storeurl parses the URLs of stores, for the OpenURL of each engine. Its errors repeat
// only the scheme of a URL, because a password may be anywhere in a malformed one.
package storeurl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/driver"
)

// PasswordVariable is the environment variable that keeps a password out of the process list.
const PasswordVariable = "LEASEHOLD_PASSWORD"

// FirstAnswer is how long a server may take to connect and answer for the first time: as long as
// the core gives to one call.
const FirstAnswer = 5 * time.Second

var errSilent = fmt.Errorf("no answer within %v", FirstAnswer)

// Waiting returns ctx with FirstAnswer as its timeout.
func Waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, FirstAnswer, errSilent)
}

// Silent adds to an error why the context of Waiting has ended, if it has: FirstAnswer, or an earlier
// end that the caller chose.
func Silent(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%v: %w", cause, err)
	}
	return err
}

// A Form is the syntax of an engine's URLs.
type Form struct {
	Schemes []string
	Secure  []string // the Schemes that use TLS
	Options []string // the parameters after the "?"
	NoUser  bool     // the servers have no users
}

// ServerOptions are the parameters that Parse itself uses.
var ServerOptions = append([]string{"password_file"}, TLSOptions...)

// fileOptions are options with paths, which must mean the same in every working directory.
var fileOptions = []string{"password_file", "creds_file", "ca_file", "cert_file", "key_file", "kubeconfig"}

// A URL is a parsed URL of servers.
type URL struct {
	Scheme   string
	User     string
	Password Secret
	Hosts    []string
	Path     []string // between slashes, after the hosts
	Options  url.Values
	TLS      *TLS // nil: none

	text string // the part after the scheme, with absolute paths and the environment's password
}

// Wrong returns an error that matches driver.ErrURL.
func (u *URL) Wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s: "+format, append([]any{driver.ErrURL, u.Scheme}, args...)...)
}

// Parse parses "scheme://user:password@h1:1,h2:2/path?options" and reads the files that the URL
// names. It does not use net/url, which supports no lists of hosts, and whose errors repeat what
// they do not understand.
func Parse(text string, f Form) (*URL, error) {
	scheme, rest, ok := Cut(text)
	if !ok || !slices.Contains(f.Schemes, scheme) {
		return nil, fmt.Errorf("%w: the scheme is none of %s", driver.ErrURL, strings.Join(f.Schemes, ", "))
	}
	u, err := split(scheme, rest, !f.NoUser)
	if err != nil {
		return nil, err
	}
	for key := range u.Options {
		if !slices.Contains(f.Options, key) {
			return nil, u.Wrong("an option is unknown; known: %s", strings.Join(f.Options, ", "))
		}
	}
	return u, u.makeTLS(slices.Contains(f.Secure, scheme))
}

// Resolve returns a URL of servers in a form that is independent of the working directory and
// the environment.
func Resolve(text string) (string, error) { return resolve(text, true) }

// ResolveNoUser is Resolve for a [Form] with NoUser, which ignores the password in the
// environment.
func ResolveNoUser(text string) (string, error) { return resolve(text, false) }

func resolve(text string, users bool) (string, error) {
	scheme, rest, _ := Cut(text)
	u, err := split(scheme, rest, users)
	if err != nil {
		return "", err
	}
	return scheme + ":" + u.text, nil
}

// Cut splits a URL at its scheme, and returns the scheme in lower case and by its main name. It
// reports false if there is none.
func Cut(text string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(text, ":")
	ok = ok && validScheme(scheme)
	if scheme = strings.ToLower(scheme); scheme == "postgresql" { // libpq accepts both
		scheme = "postgres"
	}
	return scheme, rest, ok
}

func split(scheme, rest string, users bool) (*URL, error) {
	u := &URL{Scheme: scheme}
	body, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return nil, u.Wrong("is followed by two slashes: %s://host", scheme)
	}
	body, query, _ := strings.Cut(body, "?")
	if err := u.parseOptions(query); err != nil {
		return nil, err
	}
	at := strings.LastIndexByte(body, '@')
	u.text = "//" + body[:at+1]
	if at >= 0 && !users {
		return nil, u.Wrong("takes no user and no password")
	}
	if err := u.parseUser(body[:at+1]); err != nil {
		return nil, err
	}
	if users {
		if err := u.findPassword(); err != nil {
			return nil, err
		}
	}
	if err := u.parsePlace(body[at+1:]); err != nil {
		return nil, err
	}
	u.text += body[at+1:]
	if query != "" {
		u.text += "?" + u.Options.Encode()
	}
	return u, nil
}

// parsePlace parses the hosts and the path.
func (u *URL) parsePlace(text string) error {
	hosts, path, _ := strings.Cut(text, "/")
	for host := range strings.SplitSeq(hosts, ",") {
		if host == "" || strings.ContainsAny(host, " \t#") {
			return u.Wrong("a host is missing or has a character that none has")
		}
		if _, port, err := net.SplitHostPort(host); err == nil && !isPort(port) {
			return u.Wrong("a port is a number from 1 to 65535")
		}
		u.Hosts = append(u.Hosts, host)
	}
	for part := range strings.SplitSeq(path, "/") {
		if part != "" {
			u.Path = append(u.Path, part)
		}
	}
	return nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// parseUser parses "user:password@". Each part may be missing.
func (u *URL) parseUser(info string) error {
	user, password, _ := strings.Cut(strings.TrimSuffix(info, "@"), ":")
	var err1, err2 error
	u.User, err1 = url.PathUnescape(user)
	password, err2 = url.PathUnescape(password)
	u.Password = Text(password)
	if err1 != nil || err2 != nil {
		return u.Wrong("user or password have a %% that begins no escape")
	}
	return nil
}

func (u *URL) parseOptions(query string) error {
	options, err := url.ParseQuery(query)
	if err != nil {
		return u.Wrong("options cannot be read")
	}
	for key, values := range options {
		if len(values) != 1 {
			return u.Wrong("an option is given twice")
		}
		if slices.Contains(fileOptions, key) {
			if values[0] == "" {
				return u.Wrong("%s is empty", key)
			}
			if options[key][0], err = filepath.Abs(values[0]); err != nil {
				return fmt.Errorf("find the folder of %s: %w", key, err)
			}
		}
	}
	u.Options = options
	return nil
}

// findPassword looks for a password: in the URL, in a file, in the environment.
func (u *URL) findPassword() error {
	path := u.Options.Get("password_file")
	switch {
	case u.Password.IsSet() && path != "":
		return u.Wrong("a password and a password_file exclude each other")
	case path != "":
		var err error
		if u.Password, err = ReadSecret(path); err != nil {
			return u.unread("password_file", err)
		}
	case !u.Password.IsSet():
		if password := os.Getenv(PasswordVariable); password != "" {
			u.Password = Text(password)
			u.text = "//" + url.UserPassword(u.User, password).String() + "@"
		}
	}
	return nil
}

// unread returns the error of a file that cannot be read or has the wrong contents.
func (u *URL) unread(option string, err error) error {
	if _, ok := errors.AsType[*os.PathError](err); ok {
		return fmt.Errorf("read %s: %w", option, err)
	}
	return u.Wrong("%s: %v", option, err)
}

// Bool returns a parameter that is true or false. If it is missing, it returns otherwise.
func (u *URL) Bool(option string, otherwise bool) (bool, error) {
	switch u.Options.Get(option) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "":
		return otherwise, nil
	}
	return false, u.Wrong("%s is true or false", option)
}

// HostPorts returns the hosts, each with a port.
func (u *URL) HostPorts(port string) []string {
	all := make([]string, len(u.Hosts))
	for i, h := range u.Hosts {
		all[i] = WithPort(h, port)
	}
	return all
}

// HostOf returns the host without port and brackets.
func HostOf(hostPort string) string {
	if host, _, err := net.SplitHostPort(hostPort); err == nil {
		return host
	}
	return strings.Trim(hostPort, "[]")
}

// WithPort adds a port to a host without one. An IPv6 address must be in brackets.
func WithPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port)
}
