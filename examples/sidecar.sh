#!/bin/sh
# A program in any language beside a sidecar; this one is a shell script. It appends a line to a ledger now and then, but
# only while its sidecar says that it leads, and with the fencing token, so that a reader can reject late lines. While its
# sidecar restarts, it writes nothing and asks again.
#
#   rota sidecar --lead billing-writer &
#   examples/sidecar.sh ledger.txt
set -eu

ledger=$1
sidecar=${ROTA_SIDECAR_URL:-http://127.0.0.1:4040}

field() { sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p"; }

while :; do
    # Answers as soon as this pod leads; until then the script sleeps in the call. `|| :` is for a sidecar that is away.
    curl -sS --max-time 60 "$sidecar/wait?for=leader&timeout=30" >/dev/null || :
    while status=$(curl -sS --max-time 5 "$sidecar/leader") && [ "$(echo "$status" | field state)" = leader ]; do
        echo "$(echo "$status" | field fencing_token) written by $(echo "$status" | field name)" >>"$ledger"
        # Says that we get on: with --progress-timeout-ms a script that hangs would lose its place.
        curl -sS --max-time 5 --json '{}' "$sidecar/progress" || :
        sleep 0.2
    done
    sleep 1
done
