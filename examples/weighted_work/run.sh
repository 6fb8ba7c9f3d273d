#!/bin/sh
# One desk, two workers: three quarters of the work go to the large one. Then the small one gets no more.
set -eu
cd "$(dirname "$0")"
texts=${1:-200}
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
