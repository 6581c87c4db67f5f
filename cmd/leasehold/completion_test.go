package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completers ask a shell, which has loaded the script that "leasehold completion" writes for it
// as $1, what may follow the words $2.
var completers = map[string]string{
	"bash": `
		# The part of the package bash-completion that the script needs.
		_get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=("${COMP_WORDS[@]}") cword=$COMP_CWORD; }
		__ltrim_colon_completions() { :; }
		compopt() { :; }
		. "$1"
		COMP_LINE=$2 COMP_POINT=${#2} COMP_TYPE=63 COMP_KEY=9
		read -ra COMP_WORDS <<<"$2"
		COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
		__start_leasehold
		printf '%s\n' "${COMPREPLY[@]}"`,
	"zsh": `
		# What the shell offers goes to these two.
		compdef() { :; }
		_describe() { while [[ $1 == -* ]]; do shift; done; print -rl -- "${(@P)2}"; }
		. "$1"
		words=(${(z)2}) CURRENT=${#words}
		_leasehold`,
	"fish": `
		source $argv[1]
		complete --do-complete $argv[2]`,
}

// The completions of every shell offer every flag of every command. bash and zsh are asked with
// stand-ins for what surrounds the script; fish answers by itself.
func TestShellsCompleteEveryFlag(t *testing.T) {
	t.Parallel()
	needShells(t)
	c := newCLI(t)
	want := map[string][]string{}
	everyFlag(newRootCommand(&app{}), func(cmd *cobra.Command, f *pflag.Flag) {
		want[cmd.CommandPath()] = append(want[cmd.CommandPath()], "--"+f.Name)
	})
	for shell, script := range completers {
		t.Run(shell, func(t *testing.T) {
			program, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("no %s: scripts/install-tools installs it", shell)
			}
			file := filepath.Join(c.dir, "complete."+shell)
			if err := os.WriteFile(file, []byte(c.want(0, "completion", shell).stdout), 0o600); err != nil {
				t.Fatal(err)
			}
			for command, flags := range want {
				args := []string{"-c", script, shell, file, command + " --"}
				if shell == "fish" {
					args = []string{"--no-config", "-c", script, file, command + " --"}
				}
				o := c.exec(program, args...)
				for _, f := range flags {
					if !strings.Contains(o.stdout, f) {
						t.Errorf("%s --<TAB> does not offer %s:\n%s%s", command, f, o.stdout, o.stderr)
					}
				}
			}
		})
	}
}
