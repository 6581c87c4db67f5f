# Everything that a person or the CI runs. A machine with Go and apt-get is enough.

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.9.0
MODULES = . redislock zklock etcdlock memcachelock pglisten cmd/leasehold e2e bench

.PHONY: test bench check fmt vet staticcheck vuln tidy tools

# Every test of every module, with the race detector.
test: tools
	go test -race -timeout 10m work

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
	for m in $(MODULES); do (cd $$m && GOWORK=off go mod tidy -diff) || exit 1; done

tools:
	scripts/install-tools
