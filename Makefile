# Powernode. The two commands of the README are `make demo` and `make test`.
#
#   K3S=PATH      the K3s binary for demo and spec (default: the official release where it can be downloaded)
#   K3S=standin   the stand-in: spec/k3srig, a real API server, controller manager, etcd and kubectl, no containers
#   BREAK=firewall  (demo) removes what isolates, to see that the demo notices

GO      ?= go
FUZZTIME ?= 20s
CACHE   := $(CURDIR)/.cache
BIN     := $(CURDIR)/bin
UNIT    := $(shell $(GO) list ./... 2>/dev/null | grep -v '^powernode/spec') ./spec/docs ./spec/leftovers ./spec/rig
SUDO    := $(if $(filter 0,$(shell id -u)),,sudo)
TOOLS   := ip nft wg ping tcpdump nsenter jq sqlite3 curl /lib/systemd/systemd
PACKAGES := iproute2 nftables wireguard-tools iputils-ping tcpdump util-linux jq sqlite3 procps curl systemd

# SQLite as it is used here. QPSG: a statement is planned once; otherwise SQLite plans most look-ups again at each use, because the
# values that are bound to them may change its estimates. MEMSTATUS: nobody asks how much memory it holds.
export CGO_CFLAGS := -g -O2 -DSQLITE_ENABLE_QPSG -DSQLITE_DEFAULT_MEMSTATUS=0

.PHONY: build run demo setup unit test spec race lint bench golden fuzz docs check standin help
.DEFAULT_GOAL := build

build: ## both binaries, into bin/
	$(GO) build -trimpath -o $(BIN)/ ./cmd/powernode
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ ./cmd/powernode-agent

run: build ## the control plane in the foreground
	$(BIN)/powernode serve

setup: ## what machines on this host, the demo and the tests use, where it is missing
	@for tool in $(TOOLS); do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -n "$$missing" ]; then \
	  echo "Installing$$missing: networks, firewall, tunnels and captures of the machines on this host"; \
	  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null; \
	fi

demo: setup build ## the tutorial from start to end: two isolated clusters, attacked and removed
	$(GO) build -o $(BIN)/ ./spec/demo
	$(SUDO) env K3S='$(K3S)' BREAK='$(BREAK)' KEEP='$(KEEP)' PATH="$$PATH" $(BIN)/demo -bin $(BIN) -spec spec -cache $(CACHE)

standin: ## builds the stand-in for K3s once, into .cache/k3s (minutes when cold)
	@sh spec/k3srig/build.sh $(CACHE)/k3s

unit: ## the quick part of the tests
	$(GO) test -shuffle=on $(UNIT)

race: ## the same under the race detector; it is what `make test` runs
	$(GO) test -race -shuffle=on $(UNIT)

spec: setup build standin ## whole flows on real machines
	cd spec/k3srig && CGO_ENABLED=0 GOFLAGS=-trimpath K3SRIG_BINARY=$(CACHE)/k3s $(GO) test ./...
	sh spec/mcp/install.sh $(CACHE)/mcp
	K3S=$(CACHE)/k3s BIN=$(BIN) CACHE=$(CACHE) $(GO) test -count=1 -timeout 30m -p 1 ./spec/...

ifeq ($(SUDO),)
test: setup build ## everything
	@mkdir -p $(CACHE)
	$(GO) run ./spec/leftovers snapshot $(CACHE)/before.json
	$(MAKE) race spec
	$(GO) run ./spec/leftovers check $(CACHE)/before.json
else
test:
	@echo 'The tests make machines on this host, which needs root: they go on with sudo'
	$(SUDO) env PATH="$$PATH" GOFLAGS=-buildvcs=false $(MAKE) test
endif

lint: ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -l cmd schema tools platform sdwan store nodeapi agent internal spec *.go)" || { gofmt -l . ; echo 'gofmt: the files above'; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

golden: ## rewrite golden files and the verb reference; the diff is the contract's
	$(GO) test ./tools ./sdwan ./spec/docs -update

docs: ## the verb reference anew
	$(GO) test ./spec/docs -run VerbReference -update

fuzz: ## each decoder for a while
	@for target in $$(grep -rlE '^func Fuzz' --include='*_test.go' --exclude-dir=k3srig . | xargs -n1 dirname | sort -u); do \
	  for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9]+' $$target/*_test.go | cut -c6-); do \
	    $(GO) test ./$$target -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) || exit 1; done; done

bench: build ## figures as ratios against a bare mcp-go server in the same run
	$(GO) run ./spec/bench -bin $(BIN)

check: lint unit ## what runs before every commit
	@git diff --exit-code --stat -- '*.golden'

help:
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12
