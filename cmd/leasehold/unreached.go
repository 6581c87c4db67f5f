package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"github.com/leasehold-go/leasehold/driver"
)

// unreached returns the finding for a store that does not answer.
func (d *doctor) unreached(err error) driver.Finding {
	f := driver.Finding{About: aboutReach, Level: driver.Unfit, Text: bare(err), Advice: contactAdvice(err)}
	if strings.HasPrefix(d.app.storeURL, "sqlite:") {
		f.Advice = "check that the disk is neither full nor read-only, and that you may write the file and its folder; a file of another program is left alone"
	}
	return f
}

// contactAdvice returns advice about an error of the first call to a store.
func contactAdvice(err error) string {
	var name *net.DNSError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(*fs.PathError)):
		return "it is a file of this machine: check that it exists, and that you may read it"
	case errors.As(err, &name) && name.IsNotFound:
		return "check the spelling of the host, and this machine's name servers"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: start the server, or check host and port"
	case errors.Is(err, errSilent):
		return "check that a server of this kind listens there, that it does not hang, and that no firewall drops packets"
	case strings.Contains(err.Error(), "SQLSTATE 57P03"):
		return "the server is starting, recovering or stopping: wait; if that does not help, check its log and its disk space"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "renew the server's certificate, or set this machine's clock"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "name the authority that signed the server's certificate: ?ca_file=PATH"
	case errors.As(err, new(x509.HostnameError)):
		return "use a host name that the certificate has, or give that name: ?server_name=NAME"
	case errors.As(err, new(tls.RecordHeaderError)):
		return "the server does not speak TLS there: check the port, or use a URL without TLS"
	}
	return "fix that, or check the store, its address, user and password"
}
