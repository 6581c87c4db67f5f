package stores

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/redislock"
)

// passwordVariable is the environment variable that keeps a password out of the process list.
const passwordVariable = "LEASEHOLD_PASSWORD"

// redisOptions are what may stand after the "?" of a Redis URL.
var redisOptions = []string{"prefix", "replicas", "password_file", "ca_file", "cert_file", "key_file", "server_name", "tls", "memory"}

// fileOptions are paths, which must mean the same in every folder.
var fileOptions = []string{"password_file", "ca_file", "cert_file", "key_file"}

// redisURL is a Redis URL taken apart.
type redisURL struct {
	scheme         string
	user, password string
	hosts          []string
	path           []string // between slashes, after the hosts
	options        url.Values
	tls            *tls.Config
	text           string // as it was, with absolute paths
}

// redisStore is a driver that closes its own connections.
type redisStore struct {
	*redislock.Driver
	client redis.UniversalClient
}

func (s redisStore) Close() error {
	return errors.Join(s.Driver.Close(), s.client.Close())
}

func openRedis(_ context.Context, rest string) (driver.Driver, string, error) {
	return openRedisAs("redis", rest, redisServer)
}

func openRedisTLS(_ context.Context, rest string) (driver.Driver, string, error) {
	return openRedisAs("rediss", rest, redisServer)
}

func openRedisSentinel(_ context.Context, rest string) (driver.Driver, string, error) {
	return openRedisAs("redis+sentinel", rest, redisSentinel)
}

func openRedisCluster(_ context.Context, rest string) (driver.Driver, string, error) {
	return openRedisAs("redis+cluster", rest, redisCluster)
}

// openRedisAs makes the client that connect describes. It sends nothing: the first call
// to the driver connects.
func openRedisAs(scheme, rest string, connect func(*redisURL) (redis.UniversalClient, error)) (driver.Driver, string, error) {
	u, err := parseRedis(scheme, rest)
	if err != nil {
		return nil, "", err
	}
	replicas := 0
	if text := u.options.Get("replicas"); text != "" {
		if replicas, err = strconv.Atoi(text); err != nil || replicas < 0 {
			return nil, "", u.wrong("replicas is no number of servers")
		}
	}
	client, err := connect(u)
	if err != nil {
		return nil, "", err
	}
	redis.SetLogger(quiet{}) // what goes wrong comes as an error
	prefix, given := u.options["prefix"]
	opts := &redislock.Options{Replicas: replicas, Prefix: strings.Join(prefix, "")}
	opts.NoPrefix = given && opts.Prefix == ""
	d, err := redislock.New(client, opts)
	if err != nil {
		client.Close() // its error would only hide the first
		return nil, "", u.wrong("%v", err)
	}
	return redisStore{d, client}, u.text, nil
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func (u *redisURL) wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s: "+format, append([]any{ErrURL, u.scheme}, args...)...)
}

func redisServer(u *redisURL) (redis.UniversalClient, error) {
	if len(u.hosts) != 1 {
		return nil, u.wrong("takes one host; for more there are redis+sentinel: and redis+cluster:")
	}
	if len(u.path) > 1 {
		return nil, u.wrong("takes a database number after the host and nothing more")
	}
	db, err := u.database(0)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(&redis.Options{
		Addr: withPort(u.hosts[0], "6379"), Username: u.user, Password: u.password, DB: db, TLSConfig: u.tls,
	}), nil
}

func redisSentinel(u *redisURL) (redis.UniversalClient, error) {
	if len(u.path) < 1 || len(u.path) > 2 {
		return nil, u.wrong("takes the primary's name after the hosts, and then a database number: redis+sentinel://h1,h2,h3/mymaster/0")
	}
	db, err := u.database(1)
	if err != nil {
		return nil, err
	}
	return redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: u.path[0], SentinelAddrs: withPorts(u.hosts, "26379"), Username: u.user, Password: u.password, DB: db, TLSConfig: u.tls,
	}), nil
}

func redisCluster(u *redisURL) (redis.UniversalClient, error) {
	if len(u.path) > 0 {
		return nil, u.wrong("takes no database: a cluster has one")
	}
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: withPorts(u.hosts, "6379"), Username: u.user, Password: u.password, TLSConfig: u.tls,
	}), nil
}

// database is the number at place i of the path, 0 without one.
func (u *redisURL) database(i int) (int, error) {
	if len(u.path) <= i {
		return 0, nil
	}
	db, err := strconv.Atoi(u.path[i])
	if err != nil || db < 0 {
		return 0, u.wrong("the database is no number")
	}
	return db, nil
}

// parseRedis takes "//user:password@h1:1,h2:2/path?options" apart. net/url knows no lists
// of hosts, and repeats what it does not understand. Errors here repeat nothing of it.
func parseRedis(scheme, rest string) (*redisURL, error) {
	u := &redisURL{scheme: scheme}
	body, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return nil, u.wrong("is followed by two slashes: %s://host", scheme)
	}
	body, query, _ := strings.Cut(body, "?")
	if err := u.parseOptions(query); err != nil {
		return nil, err
	}
	if at := strings.LastIndexByte(body, '@'); at >= 0 {
		user, password, _ := strings.Cut(body[:at], ":")
		var err1, err2 error
		u.user, err1 = url.PathUnescape(user)
		u.password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return nil, u.wrong("user or password have a %% that begins no escape")
		}
		body = body[at+1:]
	}
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
	before, _, _ := strings.Cut(rest, "?")
	u.text = before
	if query != "" {
		u.text += "?" + u.options.Encode()
	}
	if err := u.findPassword(); err != nil {
		return nil, err
	}
	return u, u.makeTLS()
}

func (u *redisURL) parseOptions(query string) error {
	options, err := url.ParseQuery(query)
	if err != nil {
		return u.wrong("options cannot be read")
	}
	for key, values := range options {
		if !slices.Contains(redisOptions, key) || len(values) != 1 {
			return u.wrong("an option is unknown or given twice; known: %s", strings.Join(redisOptions, ", "))
		}
		if slices.Contains(fileOptions, key) {
			if options[key][0], err = filepath.Abs(values[0]); err != nil {
				return fmt.Errorf("find the folder of %s: %w", key, err)
			}
		}
	}
	u.options = options
	return nil
}

// findPassword looks where a password may stand: in the URL, in a file, in the environment.
func (u *redisURL) findPassword() error {
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
		u.password = os.Getenv(passwordVariable)
	}
	return nil
}

// makeTLS turns TLS on for rediss:, and where an option speaks of it.
func (u *redisURL) makeTLS() error {
	o := u.options
	on := u.scheme == "rediss"
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
