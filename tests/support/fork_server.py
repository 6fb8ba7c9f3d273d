"""
Starts daemons by fork, from a process that has imported what they need: 0.05 s of processor time instead of 1.5.

    python -m tests.support.fork_server SOCKET

SOCKET is the number of an inherited socket that keeps the bounds of packets. A packet to the server is JSON with
`arguments` of `broker`, `directory`, `log` and `environ`; one from it `{"pid": ...}`, in the same order, or
`{"ended": pid, "code": ...}`, negative for a signal. The server ends with the socket; its daemons go on, as those of
anybody who died.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

import uvloop  # noqa: F401 - what a daemon imports

import broker.cli.serve
import broker.daemon.instance  # noqa: F401
from broker.cli import main

PACKET = 1 << 20


def serve(number: int) -> None:
    """Fork for every packet, until the other side is gone."""
    wakeup, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    with socket.socket(fileno=number) as asker:
        while True:
            readable = select.select([asker.fileno(), wakeup], [], [])[0]
            if wakeup in readable:
                os.read(wakeup, 4096)
                _reap(asker)
            if asker.fileno() in readable:
                packet = asker.recv(PACKET)
                if not packet:
                    return
                pid = os.fork()
                if pid == 0:
                    asker.close()
                    _run(json.loads(packet))
                asker.send(json.dumps({"pid": pid}).encode())


def _reap(asker: socket.socket) -> None:
    """Tell of every child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        asker.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _run(told: dict[str, Any]) -> NoReturn:
    """Be `python -m broker ARGUMENTS`, to the end of the process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.unfreeze()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    os.chdir(told["directory"])
    os.environ.clear()
    os.environ.update(told["environ"])
    sys.argv = ["broker", *told["arguments"]]
    code = _main()
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the end of an interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _main() -> int:
    """The exit code."""
    try:
        main()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            sys.stderr.write(stop.code + "\n")
            return 1
        return stop.code or 0
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(int(sys.argv[1]))
