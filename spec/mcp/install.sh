#!/bin/sh
# Installs the TypeScript MCP client of spec/stdio into the folder given, once: install.sh FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
to=${1:?which folder?}

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  echo 'Installing nodejs npm: the TypeScript MCP client of the tests'
  [ "$(id -u)" = 0 ] && sudo= || sudo=sudo
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null
fi
if cmp -s "$here/package-lock.json" "$to/installed.json"; then
  exit 0
fi
echo 'Installing the TypeScript MCP client of the tests'
mkdir -p "$to"
cp "$here/package.json" "$here/package-lock.json" "$to/"
npm ci --prefix "$to" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error
cp "$here/package-lock.json" "$to/installed.json"
