#!/bin/sh
# Builds the Kubernetes stand-in: build.sh OUTPUT
#
# A cold build takes minutes and says so; a warm one takes seconds and does
# nothing when OUTPUT is up to date. K3SRIG_VERSION sets the version it claims.
set -eu

output=${1:?usage: build.sh OUTPUT}
case $output in /*) ;; *) output=$PWD/$output ;; esac
version=${K3SRIG_VERSION:-v1.34.4+k3s1}
minor=${version#v1.}
pkg=k8s.io/component-base/version

cd "$(dirname "$0")"
mkdir -p "$(dirname "$output")"

start=$(date +%s)
(
	trap 'kill "$nap" 2>/dev/null; exit 0' TERM
	while :; do
		sleep 15 &
		nap=$!
		wait "$nap"
		echo "building the Kubernetes stand-in … $(($(date +%s) - start)) s" >&2
	done
) &
progress=$!
trap 'kill "$progress" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

CGO_ENABLED=0 nice go build -trimpath -buildvcs=false \
	-ldflags "-s -w -X $pkg.gitVersion=$version -X $pkg.gitMajor=1 -X $pkg.gitMinor=${minor%%.*}" \
	-o "$output" .
