package main

import (
	"time"

	"github.com/leasehold-go/leasehold/serve"
	"github.com/spf13/pflag"
)

// webhookFlags say where "leasehold serve" posts notices.
type webhookFlags struct {
	url      string
	secrets  string // file with the secrets
	longWait span
}

func (f *webhookFlags) add(set *pflag.FlagSet) {
	f.longWait = span(5 * time.Minute)
	set.StringVar(&f.url, "webhook", "", "post lost and evicted leases and long waits to `URL`")
	set.StringVar(&f.secrets, "webhook-secret-file", "", "sign them with the secrets in `FILE`")
	set.Var(&f.longWait, "webhook-wait", "waits are long after `DURATION`")
}

// read checks the flags and reads the file. It returns nil if there is no webhook. It calls failed
// if the file cannot be read after a later change.
func (f *webhookFlags) read(failed func(error)) (*serve.Webhook, error) {
	if f.url == "" {
		if f.secrets != "" {
			return nil, usageErrorf("--webhook-secret-file needs --webhook")
		}
		return nil, nil
	}
	if f.longWait <= 0 {
		return nil, usageErrorf("--webhook-wait is positive")
	}
	w := &serve.Webhook{URL: f.url, LongWait: time.Duration(f.longWait)}
	if f.secrets != "" {
		var err error
		if w.Secrets, err = serve.ReadSecrets(f.secrets, failed); err != nil {
			return nil, usageErrorf("%w", err)
		}
	}
	return w, nil
}
