# Any Go from 1.21 on fetches this toolchain by itself.
export GOTOOLCHAIN := go1.27.3

ARGS ?=
TESTFLAGS ?=
BENCH ?= .
BENCHFLAGS ?=
FUZZTIME ?= 10s
SEEDS ?= 100000

# Modules of their own, so that nobody who uses the library gets what they need.
MODULES := docs/alerts examples/fence-sarama

# Limits of go test for one package.
TIMEOUT ?= 10m
INTEGRATION_TIMEOUT ?= 20m
BENCH_TIMEOUT ?= 60m

# The race detector needs a C compiler; RACE=-race insists on it, RACE= goes without it.
RACE ?= auto

.DEFAULT_GOAL := help
.PHONY: help demo example-fence test test-modules lint test-integration bench bench-kafka-streams bench-redis sim sim-controls fuzz cover

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  ARGS="--help"         arguments of make demo, make example-fence and make bench-redis'
	@echo '  TESTFLAGS="-run X"    flags of go test for test, test-integration and cover'
	@echo '  RACE=-race | RACE=    insist on the race detector in make test, or go without it'
	@echo '  BENCH=. BENCHFLAGS="-count=10"   which benchmarks, and flags of go test'
	@echo '  FUZZTIME=10s          how long each fuzz test runs'
	@echo '  SEEDS=100000          how many schedules make sim plays'

demo: ## Run the movie ratings topology on an embedded broker
	@go run ./cmd/weir demo $(ARGS)

example-fence: ## Run the example of package fence on an embedded broker and Redis
	@go run ./examples/fence-consumer $(ARGS)

test: ## Run all tests that need nothing but Go, with the race detector where there is a C compiler
	@race='$(RACE)'; \
	if [ "$$race" = auto ]; then \
		race=-race; \
		if ! go build -race runtime/cgo 2>/dev/null; then \
			race=; \
			echo 'make test: no working C compiler, so the tests run without the race detector'; \
		fi; \
	fi; \
	set -x; go test $$race -timeout $(TIMEOUT) $(TESTFLAGS) ./...

lint: ## Check formatting, vet, staticcheck and the rules of the repository
	@unformatted=$$("$$(go env GOROOT)/bin/gofmt" -l .) || exit 1; \
	if [ -n "$$unformatted" ]; then \
		echo "not formatted; run \"$$(go env GOROOT)/bin/gofmt\" -w on:"; \
		echo "$$unformatted"; \
		exit 1; \
	fi
	go vet -tags integration ./...
	go tool staticcheck -tags integration ./...
	go test -count=1 ./internal/lint

test-modules: ## Check and test the modules beside the main one: the example with another client, the alert rules
	@set -e; \
	for dir in $(MODULES); do \
		echo "== $$dir"; \
		(cd $$dir && go vet ./... && go test -count=1 -timeout $(TIMEOUT) ./...); \
	done

test-integration: ## Run the integration tests on WEIR_KAFKA and WEIR_REDIS, or on services started for it
	scripts/services run go test -tags integration -count=1 -timeout $(INTEGRATION_TIMEOUT) $(TESTFLAGS) ./...

bench: ## Run the benchmarks
	go test -run '^$$' -bench '$(BENCH)' -benchmem -timeout $(BENCH_TIMEOUT) $(BENCHFLAGS) ./...

bench-kafka-streams: ## Compare with Kafka Streams on a real broker (needs JDK 17 and Maven)
	bench/kafka-streams/run

bench-redis: ## Compare state in Redis with plain commands, with state on disk, and with Kafka Streams
	scripts/services run go run ./bench/redis $(ARGS)

sim: ## Play SEEDS hostile schedules of the simulation and sum them up
	go test ./internal/sim -count=1 -v -timeout 0 -run '^TestScenarios$$' -sim.seeds=$(SEEDS) $(TESTFLAGS)

sim-controls: ## See that the simulation finds each design that is known to be wrong
	go test ./internal/sim -count=1 -v -run '^(TestControls|TestFenceByKey)$$' -sim.controls=100000 $(TESTFLAGS)

fuzz: ## Run each fuzz test for FUZZTIME
	@set -e; \
	grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do \
		for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$file"); do \
			echo "== $$file $$name"; \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime '$(FUZZTIME)' "$$(dirname "$$file")"; \
		done; \
	done

cover: ## Measure the coverage of the whole module and write cover.out and cover.html
	go test -coverpkg=./... -coverprofile=cover.out -timeout $(TIMEOUT) $(TESTFLAGS) ./...
	go tool cover -html=cover.out -o cover.html
	@go tool cover -func=cover.out | tail -n 1
