#!/bin/sh
# Many senders, one that writes down. The number of senders is the argument.
set -eu
cd "$(dirname "$0")"
senders=${1:-200}
started=""
trap 'kill $started 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT TERM

ready() { # waits until the instance of a configuration serves; else tells its log, and ends
    broker health ready --wait 30 -c "$1.toml" >"state/$1.health" || { cat "state/$1.log" >&2; exit 1; }
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
