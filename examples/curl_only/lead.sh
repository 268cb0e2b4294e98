#!/bin/sh
# Lead a group with nothing but curl: join, sync, then a heartbeat that returns the moment something changes.
#
#   ROTA_URL=http://localhost:8080 sh examples/curl_only/lead.sh nightly
#
# Prints "leads GENERATION" when it leads and "follows GENERATION" when another does. `rota lead nightly -- COMMAND` does
# more: it also ends the command in time when the server cannot be reached.
set -u
group=${1:?usage: lead.sh GROUP}
base=${ROTA_URL:-http://localhost:8080}/v1/namespaces/${ROTA_NAMESPACE:-default}/groups/$group
session_ms=${ROTA_SESSION_TIMEOUT_MS:-10000}
member=''
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

# post CALL JSON [SECONDS]: sets $status and $body. curl runs beside the script, because `wait` returns at a signal.
post() {
    curl --silent --max-time "${3:-60}" --header 'content-type: application/json' \
        --write-out '\n%{http_code}' --data "$2" "$base/$1" >"$answer" &
    call=$!
    wait "$call" || printf '{}\n000' >"$answer"
    status=$(tail -n 1 "$answer")
    body=$(sed '$d' "$answer")
}

# field NAME: the value of a plain field of $body.
field() {
    printf '%s' "$body" | sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p"
}

# Ends the call that waits, and leaves the group: another candidate leads at once. A second signal ends the script.
leave() {
    trap - INT TERM
    kill "$call" 2>/dev/null
    [ -z "$member" ] || post leave "{\"members\": [{\"member_id\": \"$member\", \"reason\": \"the script ends\"}]}" 5
    exit 0
}
call=''
trap leave INT TERM

while :; do
    post join "{\"member_id\": \"$member\", \"client_id\": \"lead.sh\", \"protocol_type\": \"leader\",
        \"protocols\": [{\"name\": \"single\", \"metadata\": \"\"}],
        \"session_timeout_ms\": $session_ms, \"rebalance_timeout_ms\": 60000, \"wait_ms\": 20000}"
    case $status in
    200) member=$(field member_id) ;;
    202 | 428) member=$(field member_id); continue ;;  # not over yet, or here is your id: ask again
    404) member=''; continue ;;                        # away for longer than the session: join as a new member
    *) sleep 1 & call=$!; wait "$call"; continue ;;
    esac
    generation=$(field generation_id)
    leader=$(field leader_id)
    post sync "{\"member_id\": \"$member\", \"generation_id\": $generation, \"assignments\": [], \"wait_ms\": 20000}"
    [ "$status" = 200 ] || continue
    if [ "$leader" = "$member" ]; then echo "leads $generation"; else echo "follows $generation"; fi
    # Parked for up to a third of the session. Whatever ends the loop, we join again; only then is it known who leads.
    while post heartbeat "{\"member_id\": \"$member\", \"generation_id\": $generation, \"wait_ms\": 20000}"; do
        [ "$status" = 200 ] || break
    done
    [ "$status" != 000 ] || echo "cannot reach the server"
done
