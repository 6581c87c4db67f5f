package s3lock

import (
	"context"
	"crypto/tls"
	"net/http"
	neturl "net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasehold-go/leasehold/driver"
	"github.com/leasehold-go/leasehold/internal/links"
	"github.com/leasehold-go/leasehold/internal/storeurl"
	"github.com/leasehold-go/leasehold/internal/storeurl/transport"
)

var urlForm = storeurl.Form{
	Schemes: []string{"s3"},
	Options: append([]string{"endpoint", "region", "path_style"}, storeurl.ServerOptions...),
}

// OpenURL returns a *Driver on the bucket of a URL, which must exist. It sends nothing.
//
//	s3://ACCESSKEY:SECRETKEY@BUCKET/PREFIX
//
// Without an access key the AWS SDK finds one: in the environment, in ~/.aws, or from the role
// of a machine or a pod. The parameter region is the bucket's. endpoint, such as
// https://minio.internal:9000, is for stores other than AWS; their buckets are part of the path
// unless path_style=false. password_file names a file with the secret key, which may also be in
// LEASEHOLD_PASSWORD. If the URL has no access key, either contains ACCESSKEY:SECRETKEY.
// ca_file, cert_file, key_file and server_name configure TLS. Each request reads the keys again,
// and once a second the certificates. An error that matches [driver.ErrURL] means that the URL
// is invalid. No error has a secret.
func OpenURL(ctx context.Context, url string) (driver.Driver, error) {
	u, err := storeurl.Parse(url, urlForm)
	if err != nil {
		return nil, err
	}
	if len(u.Hosts) != 1 || strings.Contains(u.Hosts[0], ":") {
		return nil, u.Wrong("takes one bucket, and its server as an option: s3://BUCKET/PREFIX?endpoint=https://HOST:PORT")
	}
	own := &links.Links{}
	load, err := loading(u, own)
	if err != nil {
		return nil, err
	}
	place, err := placing(u, load, own)
	if err != nil {
		return nil, err
	}
	settings, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, u.Wrong("%v", err)
	}
	if settings.Region == "" && u.Options.Get("endpoint") != "" {
		settings.Region = "us-east-1" // the usual region of stores other than AWS
	}
	if settings.Region == "" {
		return nil, u.Wrong("has no region, neither has the environment")
	}
	opts := &Options{}
	if len(u.Path) > 0 {
		opts.Prefix = strings.Join(u.Path, "/") + "/"
	}
	d, err := New(s3.NewFromConfig(settings, place), u.Hosts[0], opts)
	if err != nil {
		return nil, u.Wrong("%v", err)
	}
	d.store.links = own
	return d, nil
}

// idleFor is how long an unused connection stays open, even after Close.
const idleFor = 30 * time.Second

// httpClient returns a client with these TLS settings; nil: the system's certificates.
func httpClient(over *tls.Config, own *links.Links) *awshttp.BuildableClient {
	const idle = 64 // as many as one RenewAll sends at once, and some for others
	return awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost, t.IdleConnTimeout = idle, idleFor
		t.DialContext = own.Dialer(t.DialContext)
		if over != nil {
			t.TLSClientConfig = over
		}
	})
}

// certified returns a client that uses the current certificates.
func certified(t *storeurl.TLS, own *links.Links) *http.Client {
	return &http.Client{
		Transport:     transport.New(t.Changed, func() http.RoundTripper { return httpClient(t.Config(), own).GetTransport() }),
		CheckRedirect: likeTheSDK,
	}
}

// loading returns the options for loading the SDK's own settings.
func loading(u *storeurl.URL, own *links.Links) (load []func(*config.LoadOptions) error, err error) {
	load = append(load, config.WithHTTPClient(httpClient(nil, own)))
	if region := u.Options.Get("region"); region != "" {
		load = append(load, config.WithRegion(region))
	}
	if !hasKeys(u) {
		return load, nil
	}
	if u.User == "" && keyless(u.Password.Now()) {
		return nil, u.Wrong("without an access key, the file that password_file names has ACCESSKEY:SECRETKEY")
	}
	if !u.Password.IsSet() {
		return nil, u.Wrong("has an access key without a secret key")
	}
	return append(load, config.WithCredentialsProvider(keys(u))), nil
}

// hasKeys reports whether the URL or a file has the keys, so that the SDK need not find them.
func hasKeys(u *storeurl.URL) bool { return u.User != "" || u.Password.Changes() }

// keyless reports whether a text has no access key before the secret key.
func keyless(text string) bool {
	key, secret, _ := strings.Cut(text, ":")
	return key == "" || secret == ""
}

// keys returns the credentials of the URL, read again for each request.
func keys(u *storeurl.URL) aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		key, secret := u.User, u.Password.Now()
		if key == "" {
			key, secret, _ = strings.Cut(secret, ":")
		}
		return credentials.NewStaticCredentialsProvider(key, secret, "").Retrieve(ctx)
	})
}

// found is the keys that the SDK finds. The SDK reads a file such as ~/.aws/credentials only once,
// so keys from a file are looked up again. All other sources report an expiry or never change.
type found struct {
	load []func(*config.LoadOptions) error
	last aws.Credentials // only one call of Retrieve runs at a time
}

// findEvery is how often keys from a file are looked up.
const findEvery = time.Second

// inFile begins the Source of keys from a file.
const inFile = "SharedConfigCredentials"

// Retrieve implements [aws.CredentialsProvider].
func (f *found) Retrieve(ctx context.Context) (aws.Credentials, error) {
	var c aws.Credentials
	settings, err := config.LoadDefaultConfig(ctx, f.load...)
	if err == nil {
		c, err = settings.Credentials.Retrieve(ctx)
	}
	if former := strings.HasPrefix(f.last.Source, inFile); former && (err != nil || !strings.HasPrefix(c.Source, inFile)) {
		c, err = f.last, nil // the file is missing, or half written
	}
	if err != nil {
		return aws.Credentials{}, err
	}
	if strings.HasPrefix(c.Source, inFile) {
		c.CanExpire, c.Expires = true, time.Now().Add(findEvery)
	}
	f.last = c
	return c, nil
}

// A signer signs with a secret key that may change. The SDK's own signer caches for a day what it
// derives from the first secret of an access key.
type signer struct{}

// SignHTTP implements [s3.HTTPSignerV4].
func (signer) SignHTTP(ctx context.Context, c aws.Credentials, r *http.Request, hash, service, region string, at time.Time, opts ...func(*v4.SignerOptions)) error {
	fresh := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	return fresh.SignHTTP(ctx, c, r, hash, service, region, at, opts...)
}

// likeTheSDK follows only redirections that keep the method, as the SDK's own client does.
func likeTheSDK(r *http.Request, _ []*http.Request) error {
	switch r.Response.StatusCode {
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return nil
	}
	return http.ErrUseLastResponse
}

// placing sets the store's address. It omits checksums unless the store demands them, because not
// every store supports them.
func placing(u *storeurl.URL, load []func(*config.LoadOptions) error, own *links.Links) (func(*s3.Options), error) {
	endpoint := u.Options.Get("endpoint")
	at, err := neturl.Parse(endpoint)
	if endpoint != "" && (err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || at.User != nil || at.RawQuery != "") {
		return nil, u.Wrong("endpoint is http://HOST:PORT or https://HOST:PORT")
	}
	inPath, err := u.Bool("path_style", endpoint != "")
	if err != nil {
		return nil, err
	}
	var client *http.Client
	if u.TLS != nil {
		u.TLS.Name = u.Options.Get("server_name") // "": the name of each address
		client = certified(u.TLS, own)
	}
	return func(o *s3.Options) {
		if client != nil {
			o.HTTPClient = client
		}
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
		o.HTTPSignerV4 = signer{}
		if hasKeys(u) {
			o.Credentials = keys(u) // without the SDK's cache, which would keep the first keys
		} else {
			o.Credentials = aws.NewCredentialsCache(&found{load: load})
		}
		o.UsePathStyle = inPath
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	}, nil
}
