package adapters

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/adapter/leaseholdcertmagic"
)

var (
	_ certmagic.Storage          = (*leaseholdcertmagic.Storage)(nil)
	_ certmagic.TryLocker        = (*leaseholdcertmagic.Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*leaseholdcertmagic.Storage)(nil)
)

// An authority issues certificates, each time calling during.
type authority struct {
	issued atomic.Int32
	during func()
}

func (*authority) IssuerKey() string { return "test" }

func (a *authority) Issue(_ context.Context, request *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	a.issued.Add(1)
	a.during()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	signed := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: request.DNSNames,
		NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, signed, signed, request.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// onStorage is a machine whose certificates are in dir, and its log.
func onStorage(t *testing.T, dir string, locks *leasehold.Locker, ca certmagic.Issuer) (*certmagic.Config, *leaseholdcertmagic.Storage, *logged) {
	t.Helper()
	storage := leaseholdcertmagic.New(&certmagic.FileStorage{Path: filepath.Join(dir, "certificates")}, locks, "certmagic/")
	var config *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
	})
	t.Cleanup(cache.Stop)
	log := &logged{}
	config = certmagic.New(cache, certmagic.Config{
		Storage: storage, Issuers: []certmagic.Issuer{ca}, Logger: zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), log, zap.InfoLevel)),
	})
	return config, storage, log
}

// logged is a log that a test reads.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (*logged) Sync() error { return nil }

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Machines that need the same certificate at the same time obtain one.
func TestMachinesObtainOneCertificate(t *testing.T) {
	t.Parallel()
	dir, s := t.TempDir(), newStore(t)
	ca := &authority{during: func() { time.Sleep(500 * time.Millisecond) }}
	var all sync.WaitGroup
	for range 3 {
		config, _, _ := onStorage(t, dir, s.connect(t, 0), ca)
		all.Go(func() {
			if err := config.ObtainCertSync(t.Context(), "example.com"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := ca.issued.Load(); n != 1 {
		t.Errorf("%d certificates were issued", n)
	}
}

// A machine that loses its lease while it obtains a certificate goes on, stores it, and logs the loss.
func TestCertMagicGoesOnAfterALoss(t *testing.T) {
	t.Parallel()
	dir, s := t.TempDir(), newStore(t)
	locks := s.connect(t, 0)
	ca := &authority{during: func() { lose(t, locks, "certmagic/issue_cert_example.com") }}
	config, storage, log := onStorage(t, dir, locks, ca)
	if err := config.ObtainCertSync(t.Context(), "example.com"); err != nil {
		t.Error(err)
	}
	if !storage.Exists(t.Context(), certmagic.StorageKeys.SiteCert("test", "example.com")) {
		t.Error("there is no certificate")
	}
	if text := log.String(); !strings.Contains(text, "unable to unlock") || !strings.Contains(text, "lease lost") {
		t.Errorf("the log has nothing of the loss: %s", text)
	}
}

// Before another attempt CertMagic asks for a lease that it has lost, and gets it when it is free.
func TestAttemptAfterALossNeedsTheLock(t *testing.T) {
	t.Parallel()
	dir, s := t.TempDir(), newStore(t)
	locks := s.connect(t, 3*time.Second)
	_, mine, _ := onStorage(t, dir, locks, nil)
	_, others, _ := onStorage(t, dir, s.connect(t, 0), nil)
	ctx, name := t.Context(), "issue_cert_example.com"
	renew := func() error { return mine.RenewLockLease(ctx, name, time.Minute) }
	if err := renew(); err == nil {
		t.Error("what was never locked was renewed")
	}
	if err := mine.Lock(ctx, name); err != nil {
		t.Fatal(err)
	}
	if err := renew(); err != nil {
		t.Errorf("renewed while it is held: %v", err)
	}
	if ok, err := others.TryLock(ctx, name); ok || err != nil {
		t.Errorf("the other one: %v, %v", ok, err)
	}
	lose(t, locks, "certmagic/"+name)
	if ok, err := others.TryLock(ctx, name); !ok || err != nil {
		t.Errorf("the other one, after the loss: %v, %v", ok, err)
	}
	until(t, "the loss is heard of", func() bool { return renew() != nil })
	if err := renew(); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("renewed while another holds it: %v, want ErrLost", err)
	}
	if err := others.Unlock(ctx, name); err != nil {
		t.Error(err)
	}
	if err := renew(); err != nil {
		t.Errorf("renewed when it is free: %v", err)
	}
	if ok, err := others.TryLock(ctx, name); ok || err != nil {
		t.Errorf("the other one, after the renewal: %v, %v", ok, err)
	}
	if err := mine.Unlock(ctx, name); err != nil {
		t.Error(err)
	}
}
