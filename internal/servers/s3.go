package servers

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// An S3 is an object store: versitygw, on a folder. Its metadata are attributes of its files: with its
// --sidecar a get may answer with the ETag of one put and the content of another.
type S3 struct {
	server
	scheme string
}

// attributed is on a disk: files in memory have attributes since Linux 6.6 alone.
const attributed = "/var/tmp"

// S3Key and S3Secret are the keys of who may do all.
const S3Key, S3Secret = "root", "rootsecret"

// StartS3 starts an object store that has one bucket, locks, and returns when it serves. more are options, such as
// "--cert", FILE, "--key", FILE.
func StartS3(t testing.TB, more ...string) *S3 {
	t.Helper()
	return startS3(t, "", more...)
}

// StartS3WithVersions is StartS3 of a store that can keep versions. The bucket has none until it is
// told to.
func StartS3WithVersions(t testing.TB) *S3 {
	t.Helper()
	return startS3(t, "versions")
}

// startS3 has versions in a folder of that name; "": none.
func startS3(t testing.TB, versions string, more ...string) *S3 {
	t.Helper()
	scheme := "http"
	if slices.Contains(more, "--cert") {
		scheme = "https"
	}
	binary := built(t, "versitygw", "s3", "e2e/go.mod", "github.com/versity/versitygw")
	s := &S3{server{Port: FreePorts(t, 1)[0], life: t, dir: folder(t, attributed, ""), binary: binary}, scheme}
	s.args = append([]string{"--access", S3Key, "--secret", S3Secret, "--port", s.Addr(), "--quiet", "--keep-alive",
		"--iam-dir", filepath.Join(s.dir, "users")}, more...)
	s.args = append(s.args, "posix")
	dirs := []string{"data/locks", "users"}
	if versions != "" {
		dirs = append(dirs, versions)
		s.args = append(s.args, "--versioning-dir", filepath.Join(s.dir, versions))
	}
	s.args = append(s.args, s.Data())
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o700); err != nil {
			t.Fatalf("make a bucket: %v", err)
		}
	}
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	s.serves = func() error {
		resp, err := client.Get(s.Endpoint())
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	s.Start(t)
	return s
}

// AddUser makes a user who may do nothing yet.
func (s *S3) AddUser(key, secret string) {
	s.life.Helper()
	s.admin("create-user", "--access", key, "--secret", secret, "--role", "user")
}

// AddAdmin makes a user who may do all.
func (s *S3) AddAdmin(key, secret string) {
	s.life.Helper()
	s.admin("create-user", "--access", key, "--secret", secret, "--role", "admin")
}

// SetSecret replaces a user's secret key.
func (s *S3) SetSecret(key, secret string) {
	s.life.Helper()
	s.admin("update-user", "--access", key, "--secret", secret)
}

func (s *S3) admin(args ...string) {
	s.life.Helper()
	out, err := exec.Command(s.binary, append([]string{"admin", "--access", S3Key, "--secret", S3Secret, "--endpoint-url", s.Endpoint()}, args...)...).CombinedOutput()
	if err != nil {
		s.life.Fatalf("%s: %v: %s", args[0], err, out)
	}
}

// Endpoint is the server's URL.
func (s *S3) Endpoint() string { return s.scheme + "://" + s.Addr() }

// URL is that of a prefix in the server's bucket, for who may do all.
func (s *S3) URL(prefix string) string {
	return fmt.Sprintf("s3://%s:%s@locks/%s?region=us-east-1&endpoint=http:%%2F%%2F%s", S3Key, S3Secret, prefix, s.Addr())
}
