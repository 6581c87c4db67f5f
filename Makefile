# Everything that a person or the CI runs. A machine with Go and apt-get is enough.

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.9.0
VALE = github.com/errata-ai/vale/v3/cmd/vale@v3.18.0
MYSQL = mysql 9
MODULES = $(shell scripts/modules) e2e bench
BEGUN := $(shell date +%s)

.PHONY: test test-raced test-plain test-waiting test-waiting-raced test-all test-loaded test-install explore mutants model bench check fmt vet staticcheck vuln tidy prose unchanged release dist clients test-dist tools matrix

# The short lane, for each change: it leaves out what says so, with a reason (git grep -n 'Long(t, "'). The race detector
# is where drivers are used in the tests' own process, not where tests start programs. Tests mostly wait: several packages
# of each part, and several tests of each, keep two cores busy; engines set -parallel themselves. make vet vets. -k: when
# one part fails, the others go on. -count=1: tests build the command themselves, which the cache of go test does not
# see, so that it would pass a broken one. scripts/turn: what keeps two cores busy keeps a slower machine from answering.
UNRACED = cmd/leasehold e2e bench
# PostgreSQL stands for all databases: the others differ in their statements.
RACED_E2E = e2e/postgres e2e/memcached e2e/nats e2e/s3
# Those that take longest come first, so that nothing is left to wait for alone.
LONGEST = e2e/postgres engine/zklock engine/etcdlock engine/redislock
RACED = $(LONGEST) $(filter-out $(LONGEST),$(RACED_E2E) $(filter-out $(UNRACED),$(MODULES)))
# The explorer delivers one message at a time: with the race detector it takes five times as long, for the same orders.
EXPLORER = locktest/explore
PLAIN = cmd/leasehold e2e/mysql $(filter-out e2e/mysql $(RACED_E2E),$(patsubst %/,%,$(wildcard e2e/*/)))
# These do little but wait, for minutes: they run beside the others from the first moment, and take no other's turn.
WAITING = cmd/leasehold/internal/guardian e2e/badday e2e/sqlite e2e/served e2e/page
WAITING_RACED = engine/caslock locktest memory engine/httplock engine/quorum
# Most folders of bench have no test: to link each of them takes seconds.
BENCH_TESTED = $(shell grep -rl --include='*_test.go' '^func Test[A-Za-z0-9]*.t ' bench | xargs -n 1 dirname | sort -u)
EACH = -count=1 -vet=off -timeout 60m -exec $(CURDIR)/scripts/turn
test: tools
	@export TURNS=$$(mktemp -d); \
	$(MAKE) --no-print-directory -k -j 4 test-raced test-plain test-waiting test-waiting-raced; result=$$?; rm -r $$TURNS; \
	echo "make test: $$(($$(date +%s) - $(BEGUN))) s"; exit $$result

test-raced:
	go test -short -race -p 3 $(EACH) $$(go list $(RACED:%=./%/...) | grep -v -e /$(EXPLORER) $(WAITING_RACED:%=-e '/%$$'))

test-plain:
	go test -short -p 2 -parallel 4 $(EACH) $$(go list ./$(EXPLORER)/... $(PLAIN:%=./%/...) $(BENCH_TESTED:%=./%) | grep -v $(WAITING:%=-e '/%$$'))

test-waiting:
	go test -short -p 1 -parallel 8 $(EACH) $(WAITING:%=./%)

test-waiting-raced:
	go test -short -race -p 1 $(EACH) $(WAITING_RACED:%=./%)

# Every test of every module, with the race detector: for a release, and at the end of an issue.
test-all: tools
	go test -count=1 -race -p 3 -timeout 20m work; result=$$?; \
	echo "make test-all: $$(($$(date +%s) - $(BEGUN))) s"; exit $$result

# The short lane, with the race detector everywhere, beside processes that burn all processor time there is, LOADED times.
# With LANE= every test.
LOADED = 1
LANE = -short
test-loaded: tools
	scripts/under-load 8 go test $(LANE) -race -count $(LOADED) -timeout 120m work

# Goes through the orders of messages for longer than test does, and writes docs/verification.md.
# EXPLORE is how long each scenario is tried at random, CHANGES how many changes are gone through.
EXPLORE = 1m
CHANGES = 2
EXPLORED = -timeout 4h -v -explore.for $(EXPLORE) -explore.figures $(CURDIR)/docs/verification.md
explore: tools
	go test ./locktest/explore $(EXPLORED) -explore.changes $(CHANGES)
	cd e2e && go test ./explored $(EXPLORED)

# Undoes what was mended, one after the other, has the explorer find it, and writes that into docs/verification.md.
MUTANTS = -timeout 4h -v -run TestMutantsAreFound -mutants -mutants.page $(CURDIR)/docs/verification.md
mutants: tools
	go test ./locktest/explore/mutants $(MUTANTS)
	cd e2e && go test ./explored $(MUTANTS)

# Has spin go through every state of the models in docs/model, with and without mutations.
model:
	scripts/model

# Does with a release of this tree what its users do: install, get, build.
test-install:
	scripts/test-install

# The figures: prints them, and writes the page of each engine in docs/benchmarks with the conditions
# of the run; takes about five minutes for each. The charts and docs/benchmarks.md sum them up. One
# alone: cd bench && go test -run '^$$' -bench . -timeout 30m ./redis. The servers of Kubernetes and
# Consul are built first, once, which takes minutes.
bench: tools
	scripts/install-tools kubernetes consul
	go test -run '^$$' -bench . -benchmem .
	cd bench && go test -run '^$$' -bench . -timeout 120m ./... -contest.pages $(CURDIR)/docs/benchmarks
	cd bench && go run ./charts $(CURDIR)/docs/benchmarks

check: fmt vet staticcheck vuln tidy prose

fmt:
	@files=$$(git ls-files '*.go' | xargs gofmt -l); test -z "$$files" || { echo "not gofmt-ed: $$files"; exit 1; }

# Each half with the race detector or without, as test is: what both compile is compiled once. Then all that runs on
# macOS too, on which no test does: takes seconds, and a minute and a half of processor time where nothing has been compiled.
# Last the command for Windows, without run and lead.
vet:
	go vet -race $(RACED:%=./%/...)
	go vet $(PLAIN:%=./%/...) ./bench/...
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go vet $(patsubst %,./%/...,$(filter-out e2e bench,$(MODULES)))
	GOOS=windows GOARCH=amd64 CGO_ENABLED=0 go build -o /dev/null ./cmd/leasehold

staticcheck:
	for m in $(filter-out $(UNRACED),$(MODULES)); do (cd $$m && GOFLAGS=-race go run -race=false $(STATICCHECK) ./...) || exit 1; done
	for m in $(UNRACED); do (cd $$m && go run $(STATICCHECK) ./...) || exit 1; done

vuln:
	scripts/vulncheck $(GOVULNCHECK) $(MODULES)

tidy:
	scripts/tidy

# The English of pages and help texts; see scripts/prose. The first run builds vale: a minute of processor time.
prose:
	@scripts/prose $(VALE)

# Fails when what an editor asks of go, or what ran before, has changed a committed tree.
unchanged:
	go list -m all >/dev/null
	for m in $$(scripts/modules); do (cd $$m && go doc -short >/dev/null) || exit 1; done
	@changed=$$(git status --porcelain); test -z "$$changed" || { echo "changed: $$changed"; git diff --stat; exit 1; }

# Makes the commit and the tags of a release, without pushing: make release VERSION=v0.1.0
release:
	scripts/release $(VERSION)

# The packages of the command, in FOLDER, from the commit that is checked out; see scripts/dist.
FOLDER = dist
dist:
	scripts/dist $(FOLDER) $(VERSION)

# The packages of the clients for Python and Node, in FOLDER; see scripts/client-packages.
clients:
	scripts/client-packages $(FOLDER)

# Makes the packages twice, which gives the same, installs and removes them, and runs what is in the
# image; takes long where nothing has been built yet.
test-dist:
	scripts/install-tools rpm
	rm -rf $(FOLDER)/test
	scripts/dist $(FOLDER)/test/1
	scripts/dist $(FOLDER)/test/2
	cmp $(FOLDER)/test/1/SHA256SUMS $(FOLDER)/test/2/SHA256SUMS
	cd e2e && go test -count=1 ./packages -packages $(abspath $(FOLDER))/test/1

# Where MySQL cannot be had, its tests say so and skip.
tools:
	scripts/install-tools
	scripts/fetch-server $(MYSQL) || test $$? = 3

# The tests of each engine on several builds of its server; writes docs/versions.md. Takes an
# hour or so. One alone: cd e2e && go test -v ./matrix -matrix -run TestMatrix/valkey_9
matrix: tools
	cd e2e && go test -timeout 4h -v ./matrix -matrix
	scripts/install-tools kubernetes
	cd e2e && LEASEHOLD_ALL=1 go test -timeout 1h -v ./served ./s3 ./kubernetes
	cd e2e && LEASEHOLD_ALL=1 go test -timeout 1h -v -run '/kubernetes' ./demo
	cd e2e && LEASEHOLD_ALL=1 go test -timeout 1h -v -run 'TestKilledRunIsReleased/kubernetes' ./badday
	cd e2e && LEASEHOLD_ALL=1 go test -timeout 1h -v -run 'TestKubernetes' ./doctor
	cd e2e && LEASEHOLD_ALL=1 go test -timeout 1h -v -run 'Together' ./together ./postgres ./mysql ./sqlite
