#!/bin/sh
# Run connectors and tasks with nothing but curl: the server shares them out among all workers of the group.
#
#   rota topics put orders --partitions 4 --attribute weights=3,1,1,1
#   ROTA_URL=http://localhost:8080 sh examples/curl_only/work.sh etl worker-1 orders
#
# A connector is a topic, its tasks are the topic's partitions; -1 is the connector itself. Prints "runs JSON" whenever its share
# is another one, and "stopped JSON" when it has stopped what another worker is given next. Start and stop programs there.
set -u
group=${1:?usage: work.sh GROUP NAME TOPIC...}
name=${2:?usage: work.sh GROUP NAME TOPIC...}
shift 2
topics=$(printf '"%s",' "$@")
base=${ROTA_URL:-http://localhost:8080}/v1/namespaces/${ROTA_NAMESPACE:-default}/groups/$group
session_ms=${ROTA_SESSION_TIMEOUT_MS:-10000}
delay_ms=${ROTA_RETURN_DELAY_MS:-300000}
member=''
running='{}'
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

# part NUMBER: of the share that was fetched, 1 is what to run, 2 what to stop first.
part() {
    field assignment | base64 -d | sed -n "s/^{\"version\":1,\"run\":\({[^}]*}\),\"revoke\":\({[^}]*}\).*/\\$1/p"
}

# Ends the call that waits, and leaves the group; this worker's work waits for $delay_ms for it. A second signal ends the script.
leave() {
    trap - INT TERM
    kill "$call" 2>/dev/null
    [ -z "$member" ] || post leave "{\"members\": [{\"member_id\": \"$member\", \"reason\": \"the script ends\"}]}" 5
    exit 0
}
call=''
trap leave INT TERM

while :; do
    said="{\"version\": 1, \"url\": \"$name\", \"topics\": [${topics%,}], \"running\": $running,
        \"scheduled_rebalance_max_delay_ms\": $delay_ms}"
    post join "{\"member_id\": \"$member\", \"client_id\": \"$name\", \"protocol_type\": \"worker\",
        \"protocols\": [{\"name\": \"server:incremental\", \"metadata\": \"$(printf '%s' "$said" | base64 | tr -d '\n')\"}],
        \"session_timeout_ms\": $session_ms, \"rebalance_timeout_ms\": 60000, \"wait_ms\": 20000}"
    case $status in
    200) member=$(field member_id) ;;
    202 | 428) member=$(field member_id); continue ;;           # not over yet, or here is your id: ask again
    404) member=''; echo "stopped $running"; running='{}'; continue ;; # away for too long: others may run it by now
    *) [ "$status" != 000 ] || echo "cannot reach the server"; sleep 1 & call=$!; wait "$call"; continue ;;
    esac
    generation=$(field generation_id)
    while :; do
        post sync "{\"member_id\": \"$member\", \"generation_id\": $generation, \"assignments\": [], \"wait_ms\": 20000}"
        [ "$status" = 200 ] || break
        [ "$(part 1)" = "$running" ] || echo "runs $(part 1)"
        running=$(part 1)
        # What another worker is to get stops here. Only when this one joins again, and says so, it is given to that one.
        [ "$(part 2)" = '{}' ] || { echo "stopped $(part 2)"; break; }
        # Parked for up to a third of the session. Another generation without a join phase: fetch the new share.
        while post heartbeat "{\"member_id\": \"$member\", \"generation_id\": $generation, \"wait_ms\": 20000}"; do
            [ "$status" = 200 ] || break 2
            [ "$(field generation_id)" = "$generation" ] || break
        done
        generation=$(field generation_id)
    done
done
