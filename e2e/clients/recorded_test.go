package clients

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-go/leasehold/e2e/described"
	"github.com/leasehold-go/leasehold/internal/proxy"
	"github.com/leasehold-go/leasehold/internal/servers"
)

// commandEnv and folderEnv make this test binary the command "leasehold serve" for the clients'
// own tests: it runs the real one behind a balancer that records in the folder what is said.
// Stopping or killing it does the same to the service, as its clients see it.
const commandEnv, folderEnv = "LEASEHOLD_TEST_RECORDS", "LEASEHOLD_TEST_RECORDS_IN"

// recorded is the environment for that.
func recorded(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"LEASEHOLD_COMMAND=" + self, commandEnv + "=" + binary, folderEnv + "=" + described.Folder(t)}
}

// runRecorded is the process of that.
func runRecorded(command string, args []string) error {
	at := slices.Index(args, "--listen") + 1
	if at == 0 || at == len(args) {
		return errors.New("no --listen")
	}
	l, err := net.Listen("tcp", args[at])
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	args[at] = "127.0.0.1:0"
	cmd := exec.Command(command, args...)
	said, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	ended, err := servers.Start(cmd)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() { _ = cmd.Process.Signal(<-signals) }() // it may have ended
	for lines := bufio.NewScanner(said); lines.Scan(); {
		line := lines.Text()
		if address := regexp.MustCompile(`http://([^\s"]+)`).FindStringSubmatch(line); address != nil {
			proxy.ListenAt(l, described.Record(os.Getenv(folderEnv)), address[1])
			line = strings.Replace(line, address[1], l.Addr().String(), 1)
		}
		fmt.Fprintln(os.Stderr, line)
	}
	return <-ended
}

func recordedMain() {
	if err := runRecorded(os.Getenv(commandEnv), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, filepath.Base(os.Args[0])+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}
