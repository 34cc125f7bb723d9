"""Runs inside, before the command of a guarded sandbox: makes the proxy's listener, hands it to
the worker over /ump/listener.sock, and becomes the command once the worker has it.

    python3 -ISE listen.py PORT SOCKET COMMAND ARGUMENT…

A socket keeps the network namespace that it was made in, so the worker takes connections from
inside although there is no way out. Standard library only; any Python 3 that an image has.
"""

import array
import os
import socket
import sys

BACKLOG = 256


def main(port: str, path: str, command: "list[str]") -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(port)))
    listener.listen(BACKLOG)
    worker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    worker.connect(path)
    rights = array.array("i", [listener.fileno()])
    worker.sendmsg([b"l"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    worker.recv(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
