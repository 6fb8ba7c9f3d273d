# What every run.sh here does: begin with no state, start instances, wait for them, end them however it ends itself.
# shellcheck shell=sh
started="" # whatever is to be ended
trap 'kill $started 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT TERM

serve() { # starts the instance of a configuration
    mkdir -p "state/$1"
    broker serve -c "$1.toml" >>"state/$1.log" 2>&1 &
    started="$started $!"
}

ready() { # waits until it serves; else tells its log, and ends
    broker health ready --wait 30 -c "$1.toml" >"state/$1.health" || { cat "state/$1.log" >&2; exit 1; }
}

rm -rf state
