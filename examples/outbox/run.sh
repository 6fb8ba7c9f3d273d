#!/bin/sh
# Orders are taken while the daemon is away; one fails half-way; the application is killed. Then the daemon comes back.
set -eu
cd "$(dirname "$0")"
started=""
trap 'kill $started 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT TERM

ready() { # waits until the instance of a configuration serves; else tells its log, and ends
    broker health ready --wait 30 -c "$1.toml" >"state/$1.health" || { cat "state/$1.log" >&2; exit 1; }
}

rm -rf state
mkdir -p state/shop
broker serve -c shop.toml >state/shop.log 2>&1 & # makes the files, with their queues and services
started="$started $!"
daemon=$!
ready shop
kill "$daemon"
wait "$daemon"

python web.py state/shop/shop.db 4243 >state/web.log 2>&1 &
started="$started $!"
web=$!
python customer.py 4243 order Emma 2
python customer.py 4243 order Ulysses 13 # more than the database allows: refused after the message was sent
python customer.py 4243 order Persuasion 1
kill -9 "$web" # nothing of the application is left but its file
wait "$web" 2>/dev/null || true

broker serve -c shop.toml >>state/shop.log 2>&1 &
started="$started $!"
broker run -c shop.toml work:app >state/work.log 2>&1 &
started="$started $!"
python web.py state/shop/shop.db 4243 >>state/web.log 2>&1 &
started="$started $!"
python customer.py 4243 wait packed
python -c "import sqlite3; print(sqlite3.connect('state/shop/warehouse.db').execute('SELECT book, copies FROM parcels').fetchall())"
