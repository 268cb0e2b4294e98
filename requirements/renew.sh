#!/usr/bin/env bash
# Resolve the dependencies of everything that is shipped again, and write them down with their hashes: make locks
#
# The image runs Debian 12's Python, which is 3.11.2, whatever the Python is that installs: markers must be for that one.
# Hashes are of all files of a release, so a lock is good for x86_64 and aarch64 alike.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {
    local name="$1"
    shift
    "${UV:-uv}" pip compile pyproject.toml "$@" --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links \
        --no-annotate --no-header --quiet --output-file "requirements/$name.lock"
}

server=(--extra server --extra cli --extra fencing --extra grpc --extra otel --extra patterns --extra postgres --extra redis)
lock server "${server[@]}" --python-version 3.11.2 --python-platform linux
lock pipeline --extra pipeline --extra postgres --python-version 3.11.2 --python-platform linux
lock executor --extra executor --python-version 3.11 --universal
lock release --extra release --python-version 3.11 --universal
