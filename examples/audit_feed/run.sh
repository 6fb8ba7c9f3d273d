#!/bin/sh
# Many senders, one that writes down. The number of senders is the argument.
set -eu
cd "$(dirname "$0")"
senders=${1:-200}
. ../instances.sh

for name in branches audit; do
    serve "$name"
done
ready branches
ready audit

python feed.py state/branches/branches.db "$senders" & # both at once: what is sent is written down meanwhile
started="$started $!"
feeding=$!
python write_down.py state/audit/audit.db "$senders" >state/written.txt
wait "$feeding"
cat state/written.txt
