#!/bin/sh
# Runs a command on a lease of a slotkeeper agent beside us, with nothing but curl.
#
#     examples/critical_section.sh writers ./import --full
#
# CONTROL_SOCKET is where the agent's control listens, WAIT how long to wait for the slot. The command finds its fencing token
# and its slot in the environment. Exit code: the command's; 75 where the slot was not to be had in time; 80 where it was lost
# and the command was stopped. (`slotkeeper run` does all this by itself, and stops what the command has started too.)
set -u

socket=${CONTROL_SOCKET:-/run/slotkeeper/control.sock}
wait=${WAIT:-30s}
# Seconds that the command gets for stopping.
grace=2

if [ $# -lt 2 ]; then
    echo "usage: $0 SEMAPHORE COMMAND [ARGUMENT...]" >&2
    exit 64
fi
name=$1
shift

# ask METHOD PATH BODY [CURL'S OPTIONS...]: sets `status` and `answer`. Fails where nobody answers.
ask() {
    method=$1 path=$2 body=$3
    shift 3
    answer=$(curl -sS --unix-socket "$socket" -X "$method" -H 'Content-Type: application/json' -d "$body" \
        -w '\n%{http_code}' "$@" "http://slotkeeper$path") || return 1
    status=${answer##*
}
    answer=${answer%
*}
}

# field NAME: a text or number of the answer.
field() {
    printf '%s\n' "$answer" | sed -n 's/.*"'"$1"'" *: *"\{0,1\}\([^",}]*\).*/\1/p'
}

# Whole seconds on a clock that goes on during suspend, and that nobody sets.
now() {
    cut -d . -f 1 /proc/uptime
}

# ends SENT: until when the lease that was just answered is ours for sure, with time to stop the command before.
ends() {
    left=$(field expires_in)
    left=${left%s}
    echo $(($1 + ${left%.*} - grace - 1))
}

# Renews at a third of the time, until it is killed. Where the lease is lost it stops the command, and ends with 80.
keep() {
    while :; do
        pause=$(((until - $(now)) / 3))
        [ "$pause" -ge 1 ] || pause=1
        sleep "$pause" >/dev/null 2>&1
        sent=$(now)
        patience=$((until - sent))
        [ "$patience" -ge 1 ] || break
        if ask POST "/v1/leases/$lease/renew" '{}' --max-time "$patience"; then
            case $status in
                200) until=$(ends "$sent") ;;
                404 | 410) break ;;
            esac
        fi
        [ "$(now)" -lt "$until" ] || break
    done
    # Whoever is told to stop after this has nothing to say any more.
    trap '' TERM
    echo "$0: the slot is lost" >&2
    kill -TERM "$job" 2>/dev/null
    waited=0
    while [ $waited -lt $grace ] && kill -0 "$job" 2>/dev/null; do
        sleep 1 >/dev/null 2>&1
        waited=$((waited + 1))
    done
    kill -KILL "$job" 2>/dev/null
    exit 80
}

give_back() {
    trap '' TERM INT HUP
    [ -z "${keeper:-}" ] || kill -TERM "$keeper" 2>/dev/null
    # Where this does not arrive, the lease ends by itself: nobody renews it any more.
    ask DELETE "/v1/leases/$lease" '' --max-time 5
}

if ! ask POST "/v1/semaphores/$name/acquire" "{\"wait\":\"$wait\"}"; then
    echo "$0: no agent answers at $socket" >&2
    exit 69
fi
case $status in
    200) ;;
    409) echo "$0: no slot of $name within $wait" >&2 && exit 75 ;;
    *) echo "$0: $status: $answer" >&2 && exit 1 ;;
esac
lease=$(field lease)
until=$(ends "$(now)")
trap give_back EXIT
# A signal is for the command; what it makes of that is the exit code.
trap 'kill -TERM "${job:-$$}" 2>/dev/null' TERM INT HUP

SLOTKEEPER_FENCING_TOKEN=$(field fencing_token) SLOTKEEPER_SLOT=$(field slot) "$@" &
job=$!
keep &
keeper=$!

# `wait` returns at each signal, with more than 128: only one that returns when the command is gone has its code.
while :; do
    wait "$job" 2>/dev/null
    code=$?
    kill -0 "$job" 2>/dev/null || break
done
kill -TERM "$keeper" 2>/dev/null
wait "$keeper" 2>/dev/null
[ $? -ne 80 ] || code=80
keeper=
exit "$code"
