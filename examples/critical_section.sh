#!/bin/sh
# Runs a command on a lease of the local slotkeeper agent, with only curl.
#
#     examples/critical_section.sh writers ./import --full
#
# CONTROL_SOCKET is the path of the agent's control socket, WAIT how long to wait for the slot. The command inherits the standard streams,
# and has its fencing token and its slot in the environment. Exit code: the command's; 75 if no slot became free within WAIT;
# 80 if the slot was lost and the command was stopped; 128 plus the signal's number if a signal came before the command was
# started. (`slotkeeper run` does all this by itself, and also stops the processes that the command has started.)
set -u

socket=${CONTROL_SOCKET:-/run/slotkeeper/control.sock}
wait=${WAIT:-30s}
# Seconds that the command has to stop.
grace=2
newline='
'

if [ $# -lt 2 ]; then
    echo "usage: $0 SEMAPHORE COMMAND [ARGUMENT...]" >&2
    exit 64
fi
name=$1
shift

# send METHOD PATH BODY [CURL'S OPTIONS...]: prints the answer, and its status in the last line. It replaces the shell that
# calls it, so that a signal to that shell reaches curl: call it in a subshell.
send() {
    method=$1 path=$2 body=$3
    shift 3
    exec curl -sS --unix-socket "$socket" -X "$method" -H 'Content-Type: application/json' -d "$body" \
        -w '\n%{http_code}' "$@" "http://slotkeeper$path"
}

# parse OUTPUT: sets `status` and `answer` from the output of `send`.
parse() {
    status=${1##*"$newline"}
    answer=${1%"$newline"*}
}

# request, with the arguments of `send`: sets `status` and `answer`. Fails without an answer.
request() {
    output=$(send "$@") && parse "$output"
}

# field NAME: prints a text or number of the answer.
field() {
    printf '%s\n' "$answer" | sed -n 's/.*"'"$1"'" *: *"\{0,1\}\([^",}]*\).*/\1/p'
}

# Hundredths of a second on a clock that continues during suspend and cannot be set.
now() {
    read -r uptime rest </proc/uptime
    echo "${uptime%.*}${uptime#*.}"
}

# ends SENT: the time until which the slot is certainly held, minus the time to stop the command. It counts from the time at which
# the request was sent: the answer may have been delayed.
ends() {
    left=$(field expires_in_seconds)
    case $left in *.*) ;; *) left=$left.0 ;; esac
    # Its first two decimals; the 1 before them keeps 08 and 09 from being read as octal.
    decimals=$(printf '1%.2s' "${left#*.}0")
    echo $(($1 + ${left%.*} * 100 + decimals - 100 - grace * 100))
}

# Renews the lease. Fails if it has expired.
renew() {
    sent=$(now)
    if request POST "/v1/leases/$lease/renew" '{}' --max-time "$1"; then
        case $status in
            200) until=$(ends "$sent") ;;
            404 | 410) return 1 ;;
        esac
    fi
    [ "$(now)" -lt "$until" ]
}

# Whether a process exists, also one of another user, such as `sudo`, for which `kill -0` fails.
alive() {
    [ -e "/proc/$1" ]
}

# Whether the script was killed. A killed script may still exist until it is reaped, but its children have another parent.
orphaned() {
    while read -r key value; do
        if [ "$key" = PPid: ]; then
            [ "$value" -ne $$ ]
            return
        fi
    done </proc/self/status
}

# Renews at a third of the time, while the script and the command exist. If the lease is lost, or the script was killed, so that
# it would not release the slot, stops the command.
keep() {
    # A signal to the whole group is for the command, which needs its lease while it stops. USR1 ends this loop.
    trap '' TERM INT HUP
    while :; do
        pause=$(((until - $(now)) / 300))
        [ "$pause" -ge 1 ] || pause=1
        sleep "$pause" >/dev/null 2>&1
        if orphaned; then break; fi
        alive "$job" || exit 0
        left_over=$((until - $(now)))
        [ "$left_over" -gt 0 ] || break
        renew "$(printf '%d.%02d' $((left_over / 100)) $((left_over % 100)))" || break
    done
    # From here on USR1 is ignored: the command is stopped in any case.
    trap '' USR1
    orphaned || echo "$0: the slot is lost" >&2
    kill -TERM "$job" 2>/dev/null
    waited=0
    while [ $waited -lt $grace ] && alive "$job"; do
        sleep 1 >/dev/null 2>&1
        waited=$((waited + 1))
    done
    kill -KILL "$job" 2>/dev/null
    if orphaned; then request DELETE "/v1/leases/$lease" '' --max-time 5; fi
    exit 80
}

# shellcheck disable=SC2329 # The traps call it, and the next function.
release() {
    trap '' TERM INT HUP
    [ -z "$keeper" ] || kill -USR1 "$keeper" 2>/dev/null
    # If this request is lost, the lease expires without renewals.
    request DELETE "/v1/leases/$lease" '' --max-time 5
}

# A signal ends the wait for the slot. Once the command runs, the signal is passed to it, and the command decides the exit
# code. A signal that comes before both is remembered.
signal='' waiter='' job='' keeper=''
# shellcheck disable=SC2329
forward() {
    signal=$1
    for process in $waiter $job; do
        kill -TERM "$process" 2>/dev/null
    done
}
trap 'forward 15' TERM
trap 'forward 2' INT
trap 'forward 1' HUP

# A background process would have /dev/null as its standard input; the command gets the script's.
exec 3<&0
# The answer to the long request goes into an unlinked file: a shell that reads from a pipe handles no signal meanwhile.
file=$(mktemp) || exit 1
exec 4>"$file"
exec 5<"$file"
rm "$file"

sent=$(now)
send POST "/v1/semaphores/$name/acquire" "{\"wait\":\"$wait\"}" >&4 3<&- 4>&- 5<&- &
waiter=$!
[ -z "$signal" ] || kill -TERM "$waiter" 2>/dev/null
while :; do
    wait "$waiter" 2>/dev/null
    failed=$?
    alive "$waiter" || break
done
waiter=''
if [ "$failed" -ne 0 ]; then
    # When curl has ended, the agent has removed the waiter.
    [ -z "$signal" ] || exit $((128 + signal))
    echo "$0: no agent answers at $socket" >&2
    exit 69
fi
parse "$(cat <&5)"
exec 4>&- 5<&-
case $status/$(field code) in
    200/*) ;;
    409/timed_out) echo "$0: no slot of $name within $wait" >&2 && exit 75 ;;
    *) echo "$0: $status: $answer" >&2 && exit 1 ;;
esac
lease=$(field lease)
token=$(field fencing_token)
slot=$(field slot_indexes)
slot=${slot#[}
slot=${slot%]}
trap release EXIT
# After a wait, that answer does not tell the rest of the lease. A renewal, which is answered at once, does.
until=$(ends "$sent")
renew 5
lost=$?
[ -z "$signal" ] || exit $((128 + signal))
if [ "$lost" -ne 0 ]; then
    echo "$0: the slot is lost" >&2
    exit 80
fi

SLOTKEEPER_FENCING_TOKEN=$token SLOTKEEPER_SLOT=$slot "$@" <&3 3<&- &
job=$!
[ -z "$signal" ] || kill -TERM "$job" 2>/dev/null
keep >/dev/null 3<&- &
keeper=$!

# `wait` returns at each signal, with more than 128. Only after the command's end does it return the command's code.
while :; do
    wait "$job" 2>/dev/null
    code=$?
    alive "$job" || break
done
job=''
kill -USR1 "$keeper" 2>/dev/null
wait "$keeper" 2>/dev/null
[ $? -ne 80 ] || code=80
keeper=''
exit "$code"
