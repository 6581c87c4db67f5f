package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const configHelp = `# Choosing a store
The store is chosen in this order: --store, LEASEHOLD_STORE, ~/.config/leasehold/config,
/etc/leasehold/config. A configuration file has lines such as
  store = redis://locker@lock.internal/0?password_file=/etc/leasehold/password
  require-shared = true

If none of them names a store, the locks are in a SQLite file in your home directory. It
does not exclude other users or other machines. --require-shared,
LEASEHOLD_REQUIRE_SHARED=true or the line above refuse such a file, even if one is named.

A store that cannot be reached is reported at once. Commands that only look create nothing.`

// defaultStore is used if no store is named.
const defaultStore = "sqlite:"

// systemConfig is the configuration for all users of this machine.
const systemConfig = "/etc/leasehold/config"

// Keys of the configuration are the names of flags.
const keyStore, keyShared = "store", "require-shared"

// A setting is a value and its origin. If from is "", nothing has set it.
type setting struct{ value, from string }

// setting returns the value of key from the first place that sets it: flag, environment, user's
// file, system's file.
func (a *app) setting(key string) (setting, error) {
	if f := a.flags.Lookup(key); f.Changed {
		return setting{f.Value.String(), "--" + key}, filled("--"+key, f.Value.String())
	}
	variable := "LEASEHOLD_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
	if value, ok := os.LookupEnv(variable); ok {
		return setting{value, variable}, filled(variable, value)
	}
	for _, path := range []string{userConfig(), systemConfig} {
		values, err := readConfig(path)
		if value, ok := values[key]; ok || err != nil {
			return setting{value, path}, err
		}
	}
	return setting{}, nil
}

// filled refuses an empty value, which is probably a mistake.
func filled(what, value string) error {
	if strings.TrimSpace(value) == "" {
		return usageErrorf("%s is empty: it may come from a variable that is not set", what)
	}
	return nil
}

// chosenStore returns the URL of the store to open, as given, with its origin.
func (a *app) chosenStore() (setting, error) {
	s, err := a.setting(keyStore)
	if err != nil {
		return setting{}, err
	}
	if s.from == "" {
		s.value = defaultStore
	}
	if !local(s.value) {
		return s, nil
	}
	return s, a.refuseLocal(s)
}

// wrongURL adds to err, an error about the URL, where the URL was set.
func wrongURL(err error, chosen setting) error {
	if filepath.IsAbs(chosen.from) {
		return usageErrorf("%s: %w\nCorrect it there, or set --store or LEASEHOLD_STORE", chosen.from, err)
	}
	return usageErrorf("%w\nSet --store or LEASEHOLD_STORE", err)
}

// local reports whether url names a file, which only this machine has.
func local(url string) bool {
	scheme, _, _ := strings.Cut(url, ":")
	return strings.EqualFold(scheme, "sqlite")
}

// relative reports whether url names a file by a path that depends on the working directory.
func relative(url string) bool {
	_, path, _ := strings.Cut(url, ":")
	return local(url) && path != "" && !strings.HasPrefix(path, "/")
}

// refuseLocal refuses a file on this machine if the configuration requires a shared store.
func (a *app) refuseLocal(s setting) error {
	shared, err := a.setting(keyShared)
	if err != nil || shared.from == "" {
		return err
	}
	required, err := strconv.ParseBool(shared.value)
	switch {
	case err != nil:
		return usageErrorf("%s in %s is neither true nor false", keyShared, shared.from)
	case required && s.from == "":
		return usageErrorf("no store is named, but %s requires one that other machines share\nSet --store or LEASEHOLD_STORE", shared.from)
	case required:
		return usageErrorf("the store of %s is a file of this machine, but %s requires one that other machines share\nSet --store or LEASEHOLD_STORE", s.from, shared.from)
	}
	return nil
}

// userConfig returns the path of the user's configuration, in the folder of the XDG base directory
// specification.
func userConfig() string {
	folder := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(folder) { // the specification says to ignore relative paths
		home, err := os.UserHomeDir()
		if err != nil {
			return "" // without a home directory there is no such file
		}
		folder = filepath.Join(home, ".config")
	}
	return filepath.Join(folder, "leasehold", "config")
}

// readConfig reads lines of the form "key = value". A missing file has none. Errors repeat no
// content, because a URL may contain a password. A file that cannot be read is an error, and so is
// a dangling link. Without the file, the program could lock in another store.
func readConfig(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	data, err := readFile(path)
	if err != nil {
		return nil, usageErrorf("the configuration cannot be read: %w", err)
	}
	values, n := map[string]string{}, 0
	for line := range strings.Lines(string(data)) {
		n++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if err := readLine(values, line); err != nil {
			return nil, usageErrorf("%s, line %d: %w", path, n, err)
		}
	}
	return values, nil
}

// readFile returns nothing for a missing file. It does not wait for a writer of a named pipe.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		for _, p := range []string{path, filepath.Dir(path)} {
			if link, err := os.Lstat(p); err == nil && link.Mode()&fs.ModeSymlink != 0 {
				return nil, fmt.Errorf("%s is a link to %s, which does not exist", p, path)
			}
		}
		return nil, nil
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeNamedPipe != 0:
		return nil, fmt.Errorf("%s is a pipe", path)
	}
	return os.ReadFile(path)
}

func readLine(values map[string]string, line string) error {
	key, value, ok := strings.Cut(line, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	_, twice := values[key]
	switch {
	case !ok:
		return errors.New("want key = value")
	case !slices.Contains([]string{keyStore, keyShared}, key):
		return fmt.Errorf("unknown key; known: %s, %s", keyStore, keyShared)
	case twice:
		return fmt.Errorf("%s is set twice", key)
	case value == "":
		return fmt.Errorf("%s is empty", key)
	case key == keyStore && relative(value):
		return errors.New("the store's path must begin with a slash, to mean the same in every folder")
	}
	values[key] = value
	return nil
}

// sayLocal informs a person at a terminal which processes the default store excludes.
func (a *app) sayLocal() {
	if _, ok := terminal(a.stderr); ok && a.byDefault && !a.json {
		a.tell(onStore, "", 0, "no store is named, so only your own processes on this machine exclude each other\nTo exclude others, name one with --store: leasehold help --full")
	}
}
