package servers

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// NeedCurator returns the path of a Java machine that compiles, and the class path of Curator's
// recipes, both of the system.
func NeedCurator(t testing.TB) (java, classes string) {
	t.Helper()
	const folder = "/usr/share/java/"
	jars := []string{"curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute", "guava", "slf4j-api", "slf4j-nop"}
	for i, jar := range jars {
		jars[i] = folder + jar + ".jar"
	}
	need(t, "curator", "Curator, or a Java compiler,", func() (err error) {
		java, err = exec.LookPath("java")
		_, compiler := exec.LookPath("javac")
		err = errors.Join(err, compiler)
		for _, jar := range jars {
			_, missing := os.Stat(jar)
			err = errors.Join(err, missing)
		}
		return err
	})
	return java, strings.Join(jars, ":")
}
