#!/bin/sh
# Many senders, one that writes down. The number of senders is the argument.
set -eu
cd "$(dirname "$0")"
senders=${1:-200}
started=""
trap 'kill $started 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT TERM

ready() { # until the instance of a configuration serves, 30 seconds at most
    for _ in $(seq 60); do
        broker health ready -c "$1.toml" >/dev/null 2>&1 && return
        sleep 0.5
    done
    echo "$1 does not serve; see $PWD/state/$1.log" >&2
    exit 1
}

rm -rf state
for name in branches audit; do
    mkdir -p "state/$name"
    broker serve -c "$name.toml" >"state/$name.log" 2>&1 &
    started="$started $!"
done
ready branches
ready audit

python feed.py state/branches/branches.db "$senders" & # both at once: what is sent is written down meanwhile
started="$started $!"
feeding=$!
python write_down.py state/audit/audit.db "$senders" >state/written.txt
wait "$feeding"
cat state/written.txt
