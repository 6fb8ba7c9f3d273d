#!/bin/sh
# Orders are taken while the daemon is away; one fails half-way; the application is killed. Then the daemon comes back.
set -eu
cd "$(dirname "$0")"
. ../instances.sh

serve shop # makes the files, with their queues and services
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

serve shop
broker run -c shop.toml work:app >state/work.log 2>&1 &
started="$started $!"
python web.py state/shop/shop.db 4243 >>state/web.log 2>&1 &
started="$started $!"
python customer.py 4243 wait packed
python -c "import sqlite3; print(sqlite3.connect('state/shop/warehouse.db').execute('SELECT book, copies FROM parcels').fetchall())"
