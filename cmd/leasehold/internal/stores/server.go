package stores

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// passwordVariable is the environment variable that keeps a password out of the process list.
const passwordVariable = "LEASEHOLD_PASSWORD"

// Environ is this process's environment without what may have a password in it: processes
// that it starts get that another way, or not at all.
func Environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, passwordVariable+"=") || strings.HasPrefix(v, "LEASEHOLD_STORE=")
	})
}

// fileOptions are paths, which must mean the same in every folder.
var fileOptions = []string{"password_file", "ca_file", "cert_file", "key_file"}

// serverURL is the URL of servers taken apart.
type serverURL struct {
	scheme         string
	user, password string
	hosts          []string
	path           []string // between slashes, after the hosts
	options        url.Values
	tls            *tls.Config
	text           string // as it was, with absolute paths and the password of the environment
}

func (u *serverURL) wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s: "+format, append([]any{ErrURL, u.scheme}, args...)...)
}

// parseServer takes "//user:password@h1:1,h2:2/path?options" apart. net/url knows no lists
// of hosts, and repeats what it does not understand. Errors here repeat nothing of it.
// known are the options that may stand after the "?".
func parseServer(scheme, rest string, known []string, secure bool) (*serverURL, error) {
	u := &serverURL{scheme: scheme}
	body, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return nil, u.wrong("is followed by two slashes: %s://host", scheme)
	}
	body, query, _ := strings.Cut(body, "?")
	if err := u.parseOptions(query, known); err != nil {
		return nil, err
	}
	at := strings.LastIndexByte(body, '@')
	if err := u.parseUser(body[:at+1]); err != nil {
		return nil, err
	}
	body = body[at+1:]
	hosts, path, _ := strings.Cut(body, "/")
	for host := range strings.SplitSeq(hosts, ",") {
		if host == "" || strings.ContainsAny(host, " \t#") {
			return nil, u.wrong("a host is missing or has a character that none has")
		}
		u.hosts = append(u.hosts, host)
	}
	for part := range strings.SplitSeq(path, "/") {
		if part != "" {
			u.path = append(u.path, part)
		}
	}
	u.text += body
	if query != "" {
		u.text += "?" + u.options.Encode()
	}
	return u, u.makeTLS(secure)
}

// parseUser takes "user:password@" apart, of which all may be missing, and begins text.
func (u *serverURL) parseUser(info string) error {
	user, password, _ := strings.Cut(strings.TrimSuffix(info, "@"), ":")
	var err1, err2 error
	u.user, err1 = url.PathUnescape(user)
	u.password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return u.wrong("user or password have a %% that begins no escape")
	}
	u.text = "//" + info
	return u.findPassword()
}

func (u *serverURL) parseOptions(query string, known []string) error {
	options, err := url.ParseQuery(query)
	if err != nil {
		return u.wrong("options cannot be read")
	}
	for key, values := range options {
		if !slices.Contains(known, key) || len(values) != 1 {
			return u.wrong("an option is unknown or given twice; known: %s", strings.Join(known, ", "))
		}
		if slices.Contains(fileOptions, key) {
			if values[0] == "" {
				return u.wrong("%s is empty", key)
			}
			if options[key][0], err = filepath.Abs(values[0]); err != nil {
				return fmt.Errorf("find the folder of %s: %w", key, err)
			}
		}
	}
	u.options = options
	return nil
}

// findPassword looks where a password may stand: in the URL, in a file, in the environment.
func (u *serverURL) findPassword() error {
	path := u.options.Get("password_file")
	switch {
	case u.password != "" && path != "":
		return u.wrong("a password and a password_file exclude each other")
	case path != "":
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read password_file: %w", err)
		}
		u.password = strings.TrimRight(string(b), "\r\n")
	case u.password == "":
		if u.password = os.Getenv(passwordVariable); u.password != "" {
			u.text = "//" + url.UserPassword(u.user, u.password).String() + "@"
		}
	}
	return nil
}

// makeTLS turns TLS on where the scheme or an option speaks of it.
func (u *serverURL) makeTLS(on bool) error {
	o := u.options
	for _, key := range []string{"ca_file", "cert_file", "key_file", "server_name"} {
		on = on || o.Get(key) != ""
	}
	switch o.Get("tls") {
	case "true":
		on = true
	case "", "false":
	default:
		return u.wrong("tls is true or false")
	}
	if !on {
		return nil
	}
	u.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.Get("server_name")}
	if u.tls.ServerName == "" && len(u.hosts) == 1 {
		u.tls.ServerName, _, _ = net.SplitHostPort(withPort(u.hosts[0], "0"))
	}
	if path := o.Get("ca_file"); path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read ca_file: %w", err)
		}
		u.tls.RootCAs = x509.NewCertPool()
		if !u.tls.RootCAs.AppendCertsFromPEM(pem) {
			return u.wrong("ca_file has no certificate")
		}
	}
	if cert, key := o.Get("cert_file"), o.Get("key_file"); cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return fmt.Errorf("read cert_file and key_file: %w", err)
		}
		u.tls.Certificates = []tls.Certificate{pair}
	}
	return nil
}

func withPorts(hosts []string, port string) []string {
	all := make([]string, len(hosts))
	for i, h := range hosts {
		all[i] = withPort(h, port)
	}
	return all
}

// withPort adds a port to a host that has none; IPv6 addresses stand in brackets.
func withPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port)
}
