#!/bin/sh
# One desk, two workers: three quarters of the work go to the large one. Then the small one gets no more.
set -eu
cd "$(dirname "$0")"
texts=${1:-200}
started=""
trap 'kill $started 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT TERM

ready() { # waits until the instance of a configuration serves; else tells its log, and ends
    broker health ready --wait 30 -c "$1.toml" >"state/$1.health" || { cat "state/$1.log" >&2; exit 1; }
}

rm -rf state
for name in desk small large; do
    mkdir -p "state/$name"
    broker serve -c "$name.toml" >"state/$name.log" 2>&1 &
    started="$started $!"
done
for name in desk small large; do
    ready "$name"
done
for name in small large; do
    WORKER=$name broker run -c "$name.toml" worker:app >"state/$name.worker.log" 2>&1 &
    started="$started $!"
done

python hand_out.py state/desk/desk.db "$texts"
broker sql -c desk.toml -d desk "DROP ROUTE Small" 2>&1
python hand_out.py state/desk/desk.db 20
