"""
A customer of the web application on a port.

    python customer.py 4243 order Emma 2      order two copies, and print what the answer says
    python customer.py 4243 wait packed       wait until every order is in that state, then list them
"""

import json
import sys
import time
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

PATIENCE_SECONDS = 60.0


def ask(port: int, method: str, body: str | None = None) -> tuple[int, Any]:
    """One request, tried again until somebody listens; its status, and what the answer says."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            try:
                connection.request(method, "/orders", body)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                continue
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


def order(port: int, book: str, copies: int) -> None:
    """Order; a refusal is an answer too."""
    status, told = ask(port, "POST", json.dumps({"book": book, "copies": copies}))
    print(f"{copies} of {book}: {status} {told}")


def wait(port: int, state: str) -> None:
    """Wait until every order is in a state, and list them."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        _, orders = ask(port, "GET")
        if all(one["state"] == state for one in orders):
            break
        if time.monotonic() > deadline:
            sys.exit(f"not every order is {state}: {orders}")
        time.sleep(0.1)
    for one in orders:
        print(f"order {one['number']}: {one['copies']} of {one['book']}, {one['state']}")


match sys.argv[2:]:
    case ["order", book, copies]:
        order(int(sys.argv[1]), book, int(copies))
    case ["wait", state]:
        wait(int(sys.argv[1]), state)
    case _:
        sys.exit(__doc__)
