#!/bin/sh
# Runs a command on a lease of a slotkeeper agent beside us, with nothing but curl.
#
#     examples/critical_section.sh writers ./import --full
#
# CONTROL_SOCKET is where the agent's control listens, WAIT how long to wait for the slot. The command has our standard streams,
# and finds its fencing token and its slot in the environment. Exit code: the command's; 75 where the slot was not to be had in
# time; 80 where it was lost and the command was stopped; 128 and the signal's number where that came before the command was
# started. (`slotkeeper run` does all this by itself, and stops what the command has started too.)
set -u

socket=${CONTROL_SOCKET:-/run/slotkeeper/control.sock}
wait=${WAIT:-30s}
# Seconds that the command gets for stopping.
grace=2
newline='
'

if [ $# -lt 2 ]; then
    echo "usage: $0 SEMAPHORE COMMAND [ARGUMENT...]" >&2
    exit 64
fi
name=$1
shift

# send METHOD PATH BODY [CURL'S OPTIONS...]: the answer, and its status in the last line. It takes the place of the shell that
# calls it, so that a signal to that is one to curl: call it in one of its own.
send() {
    method=$1 path=$2 body=$3
    shift 3
    exec curl -sS --unix-socket "$socket" -X "$method" -H 'Content-Type: application/json' -d "$body" \
        -w '\n%{http_code}' "$@" "http://slotkeeper$path"
}

# take ANSWER: sets `status` and `answer` by what `send` has printed.
take() {
    status=${1##*"$newline"}
    answer=${1%"$newline"*}
}

# ask, as `send`: sets `status` and `answer`. Fails where nobody answers.
ask() {
    said=$(send "$@") && take "$said"
}

# field NAME: a text or number of the answer.
field() {
    printf '%s\n' "$answer" | sed -n 's/.*"'"$1"'" *: *"\{0,1\}\([^",}]*\).*/\1/p'
}

# Hundredths of a second on a clock that goes on during suspend, and that nobody sets.
now() {
    read -r uptime rest </proc/uptime
    echo "${uptime%.*}${uptime#*.}"
}

# ends SENT: until when the lease is ours for sure, with time to stop the command before. It counts from when the request was
# sent that was answered so: the answer may have been long on its way.
ends() {
    left=$(field expires_in)
    case $left in *.*) ;; *) left=$left.0 ;; esac
    # Its first two decimals; the 1 before them keeps 08 and 09 from being read as octal.
    decimals=$(printf '1%.2s' "${left#*.}0")
    echo $(($1 + ${left%.*} * 100 + decimals - 100 - grace * 100))
}

# Says that the lease is still needed. Fails where it is over.
renew() {
    sent=$(now)
    if ask POST "/v1/leases/$lease/renew" '{}' --max-time "$1"; then
        case $status in
            200) until=$(ends "$sent") ;;
            404 | 410) return 1 ;;
        esac
    fi
    [ "$(now)" -lt "$until" ]
}

# Whether a process is there, also one of another user's, such as `sudo`, which `kill -0` would not tell.
alive() {
    [ -e "/proc/$1" ]
}

# Whether the script was killed. One that nobody has reaped is still there; but its children have another parent.
orphaned() {
    while read -r key value; do
        if [ "$key" = PPid: ]; then
            [ "$value" -ne $$ ]
            return
        fi
    done </proc/self/status
}

# Renews at a third of the time, as long as the script and the command are there. Where the lease is lost, or the script was
# killed, so that nobody would give the slot back, it stops the command.
keep() {
    # A signal to all of us is the command's affair, which needs its lease for stopping. USR1 says that we are done.
    trap '' TERM INT HUP
    while :; do
        pause=$(((until - $(now)) / 300))
        [ "$pause" -ge 1 ] || pause=1
        sleep "$pause" >/dev/null 2>&1
        if orphaned; then break; fi
        alive "$job" || exit 0
        patience=$((until - $(now)))
        [ "$patience" -gt 0 ] || break
        renew "$(printf '%d.%02d' $((patience / 100)) $((patience % 100)))" || break
    done
    # Whoever is told to stop after this has nothing to say any more.
    trap '' USR1
    orphaned || echo "$0: the slot is lost" >&2
    kill -TERM "$job" 2>/dev/null
    waited=0
    while [ $waited -lt $grace ] && alive "$job"; do
        sleep 1 >/dev/null 2>&1
        waited=$((waited + 1))
    done
    kill -KILL "$job" 2>/dev/null
    if orphaned; then ask DELETE "/v1/leases/$lease" '' --max-time 5; fi
    exit 80
}

# shellcheck disable=SC2329 # The traps call it, and the next one.
give_back() {
    trap '' TERM INT HUP
    [ -z "$keeper" ] || kill -USR1 "$keeper" 2>/dev/null
    # Where this does not arrive, the lease ends by itself: nobody renews it any more.
    ask DELETE "/v1/leases/$lease" '' --max-time 5
}

# What a signal does: it ends the waiting for the slot. Once there is a command, it is for that, and what the command makes of it
# is the exit code. One that comes before either is there is remembered.
told='' asking='' job='' keeper=''
# shellcheck disable=SC2329
tell() {
    told=$1
    for process in $asking $job; do
        kill -TERM "$process" 2>/dev/null
    done
}
trap 'tell 15' TERM
trap 'tell 2' INT
trap 'tell 1' HUP

# What runs in the background would have /dev/null for its standard input; the command is to have ours.
exec 3<&0
# The answer to the long request goes into a file without a name: a shell that reads from a pipe hears no signal meanwhile.
file=$(mktemp) || exit 1
exec 4>"$file"
exec 5<"$file"
rm "$file"

sent=$(now)
send POST "/v1/semaphores/$name/acquire" "{\"wait\":\"$wait\"}" >&4 3<&- 4>&- 5<&- &
asking=$!
[ -z "$told" ] || kill -TERM "$asking" 2>/dev/null
while :; do
    wait "$asking" 2>/dev/null
    failed=$?
    alive "$asking" || break
done
asking=''
if [ "$failed" -ne 0 ]; then
    # A curl that is gone has left the line.
    [ -z "$told" ] || exit $((128 + told))
    echo "$0: no agent answers at $socket" >&2
    exit 69
fi
take "$(cat <&5)"
exec 4>&- 5<&-
case $status/$(field code) in
    200/*) ;;
    409/timed_out) echo "$0: no slot of $name within $wait" >&2 && exit 75 ;;
    *) echo "$0: $status: $answer" >&2 && exit 1 ;;
esac
lease=$(field lease)
token=$(field fencing_token)
slot=$(field slot)
trap give_back EXIT
# After a wait, what is left of the lease is not known from that answer: a renewal, which is answered at once, tells it.
until=$(ends "$sent")
renew 5
lost=$?
[ -z "$told" ] || exit $((128 + told))
if [ "$lost" -ne 0 ]; then
    echo "$0: the slot is lost" >&2
    exit 80
fi

SLOTKEEPER_FENCING_TOKEN=$token SLOTKEEPER_SLOT=$slot "$@" <&3 3<&- &
job=$!
[ -z "$told" ] || kill -TERM "$job" 2>/dev/null
keep >/dev/null 3<&- &
keeper=$!

# `wait` returns at each signal, with more than 128: only one that returns when the command is gone has its code.
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
