#!/bin/sh
# Two instances of two owners: each makes its certificates and sends the other one file, then orders are billed, sealed.
set -eu
cd "$(dirname "$0")"
. ../instances.sh

for name in orders billing; do
    mkdir -p "state/$name"
    (
        cd "state/$name" && mkdir -p tls/peers dialog/peers
        broker certs init --self-signed tls --name "$name" --host 127.0.0.1
        broker certs issue --database "$name" --out dialog
        cp "tls/$name.pem" tls/peers/ # `peers` has to name a certificate before there is a partner
    ) >"state/$name.certs.log"
    serve "$name"
done
ready orders
ready billing

# The files hold no secret. Between two companies they travel by mail, and the fingerprints are compared by phone.
broker partner export -c orders.toml --service //shop/Orders --to //shop/Billing >state/orders.partner
broker partner export -c billing.toml --service //shop/Billing --to //shop/Orders >state/billing.partner
broker partner import state/billing.partner -c orders.toml --yes >state/orders.import.log
broker partner import state/orders.partner -c billing.toml --yes >state/billing.import.log
echo "partners"

broker run -c billing.toml bill:app >state/bill.log 2>&1 &
started="$started $!"
python place.py state/orders/orders.db
