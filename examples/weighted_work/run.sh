#!/bin/sh
# One desk, two workers: three quarters of the work go to the large one. Then the small one gets no more.
set -eu
cd "$(dirname "$0")"
texts=${1:-200}
. ../instances.sh

for name in desk small large; do
    serve "$name"
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
