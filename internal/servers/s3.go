package servers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// An S3 is an object store: versitygw on a folder. It keeps metadata in attributes of files. With
// --sidecar, a get may return the ETag of one put with the content of another.
type S3 struct {
	server
	scheme string
}

// attributed is a folder on a disk: files in memory have attributes only since Linux 6.6.
const attributed = "/var/tmp"

// S3Key and S3Secret are the keys of the user who may do everything.
const S3Key, S3Secret = "root", "rootsecret"

// StartS3 starts an object store with one bucket, locks, and returns when it serves. more are
// further options, such as "--cert", FILE, "--key", FILE.
func StartS3(t testing.TB, more ...string) *S3 {
	t.Helper()
	return startS3(t, "", more...)
}

// StartS3WithVersions is like StartS3, for a store that can keep versions. The bucket does not keep
// them until versioning is enabled.
func StartS3WithVersions(t testing.TB) *S3 {
	t.Helper()
	return startS3(t, "versions")
}

// startS3 keeps versions in a folder of that name. "" means none.
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
	s.serves = func() error { return listens(s.Addr()) }
	s.Start(t)
	return s
}

// AddUser makes a user without any rights.
func (s *S3) AddUser(key, secret string) {
	s.life.Helper()
	s.admin("create-user", "--access", key, "--secret", secret, "--role", "user")
}

// AddAdmin makes a user who may do everything.
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

// Endpoint returns the server's URL.
func (s *S3) Endpoint() string { return s.scheme + "://" + s.Addr() }

// URL returns the URL of a prefix in the server's bucket, for the user who may do everything.
func (s *S3) URL(prefix string) string {
	return fmt.Sprintf("s3://%s:%s@locks/%s?region=us-east-1&endpoint=http:%%2F%%2F%s", S3Key, S3Secret, prefix, s.Addr())
}
