#!/bin/sh
# Installs what spec holds the MCP face against (the TypeScript clients, the inspector, the conformance suite, and the
# Node.js that they need) into the folder given, once: install.sh FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
to=${1:?which folder?}

if cmp -s "$here/package-lock.json" "$to/installed.json"; then
  exit 0
fi
if ! command -v npm >/dev/null; then
  echo 'Installing nodejs npm: the clients that the tests speak to the MCP face with'
  [ "$(id -u)" = 0 ] && sudo= || sudo=sudo
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null
fi
echo 'Installing MCP clients, inspector and conformance suite of the tests'
mkdir -p "$to"
cp "$here/package.json" "$here/package-lock.json" "$to/"
# No package's script runs: what is needed of them (Node.js itself among it) is a package without one.
# Not npm ci: it wants an optional package for Windows in the lock file, which an installation on Linux leaves out.
npm install --prefix "$to" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error
cp "$here/package-lock.json" "$to/installed.json"
