# Everything that a person or the CI runs. A machine with Go and apt-get is enough.

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.9.0
MYSQL = mysql 9
MODULES = . redislock zklock etcdlock memcachelock pglisten cmd/leasehold e2e bench

.PHONY: test test-loaded test-install explore bench check fmt vet staticcheck vuln tidy unchanged release tools matrix

# Every test of every module, with the race detector.
test: tools
	go test -race -timeout 20m work

# The same beside processes that burn all processor time there is, LOADED times.
LOADED = 1
test-loaded: tools
	scripts/under-load 8 go test -race -count $(LOADED) -timeout 120m work

# Goes through the orders of messages for longer than test does, and writes docs/verification.md.
# EXPLORE is how long each scenario is tried at random, CHANGES how many changes are gone through.
EXPLORE = 1m
CHANGES = 2
EXPLORED = -timeout 4h -v -explore.for $(EXPLORE) -explore.figures $(CURDIR)/docs/verification.md
explore: tools
	go test ./locktest/explore $(EXPLORED) -explore.changes $(CHANGES)
	cd e2e && go test ./explored $(EXPLORED)

# Does with a release of this tree what its users do: install, get, build.
test-install:
	scripts/test-install

# The figures of docs/benchmarks.md, a table for each engine; takes about five minutes for
# each. One alone: cd bench && go test -run '^$$' -bench . -timeout 30m ./redis
bench:
	go test -run '^$$' -bench . -benchmem .
	cd bench && go test -run '^$$' -bench . -timeout 60m ./...

check: fmt vet staticcheck vuln tidy

fmt:
	@files=$$(git ls-files '*.go' | xargs gofmt -l); test -z "$$files" || { echo "not gofmt-ed: $$files"; exit 1; }

vet:
	go vet work

staticcheck:
	for m in $(MODULES); do (cd $$m && go run $(STATICCHECK) ./...) || exit 1; done

vuln:
	scripts/vulncheck $(GOVULNCHECK) $(MODULES)

tidy:
	scripts/tidy

# Fails when what an editor asks of go, or what ran before, has changed a committed tree.
unchanged:
	go list -m all >/dev/null
	for m in $$(scripts/modules); do (cd $$m && go doc -short >/dev/null) || exit 1; done
	@changed=$$(git status --porcelain); test -z "$$changed" || { echo "changed: $$changed"; git diff --stat; exit 1; }

# Makes the commit and the tags of a release, without pushing: make release VERSION=v0.1.0
release:
	scripts/release $(VERSION)

# Where MySQL cannot be had, its tests say so and skip.
tools:
	scripts/install-tools
	scripts/fetch-server $(MYSQL) || test $$? = 3

# The tests of each engine on several builds of its server; writes docs/versions.md. Takes an
# hour or so. One alone: cd e2e && go test -v ./matrix -matrix -run TestMatrix/valkey_9
matrix: tools
	cd e2e && go test -timeout 4h -v ./matrix -matrix
