#!/bin/sh
# Two instances of two owners: each makes its certificates, one token introduces them, then orders are billed, sealed.
set -eu
cd "$(dirname "$0")"
. ../instances.sh

for name in orders billing; do
    mkdir -p "state/$name"
    (
        cd "state/$name" && mkdir -p tls/peers dialog/peers routes.d scripts.d
        broker certs init --self-signed tls --name "$name" --host 127.0.0.1
        broker certs issue --database "$name" --out dialog
        cp "tls/$name.pem" tls/peers/ # so that `trust` names somebody before there is a peer
    ) >"state/$name.certs.log"
    serve "$name"
done
ready orders
ready billing

# The token is a secret until it is used. Between two companies it travels by a way that both trust.
(umask 077 && : >state/token)
broker pair invite -c orders.toml --service //shop/Orders >state/token 2>state/invite.log &
started="$started $!"
inviting=$!
until grep -q '^broker-pair-' state/token; do
    kill -0 "$inviting" 2>/dev/null || { cat state/invite.log >&2; exit 1; }
    sleep 0.1
done
grep '^broker-pair-' state/token | broker pair accept - -c billing.toml --service //shop/Billing >state/accept.log
wait "$inviting"
echo "paired"

broker run -c billing.toml bill:app >state/bill.log 2>&1 &
started="$started $!"
python place.py state/orders/orders.db
