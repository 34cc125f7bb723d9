"""Joins standard input and output to a host through the sandbox's proxy, as ssh wants it of a
ProxyCommand. Runs inside: `proxy-connect HOST PORT`. Standard library only, few imports."""

from __future__ import annotations

import os
import select
import socket
import sys

PROXY = ("127.0.0.1", 3128)
CHUNK = 65536


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: proxy-connect HOST PORT", file=sys.stderr)
        return 2
    host, port = arguments
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with socket.create_connection(PROXY) as sock:
        sock.sendall(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
        head = b""
        # Byte by byte, for what follows belongs to the other side of the tunnel.
        while not head.endswith(b"\r\n\r\n"):
            piece = sock.recv(1)
            if not piece:
                break
            head += piece
        if head.split(b" ")[1:2] != [b"200"]:
            reason = b"".join(iter(lambda: sock.recv(CHUNK), b""))
            print(reason.decode(errors="replace").strip(), file=sys.stderr)
            return 1
        relay(sock)
    return 0


def relay(sock: socket.socket) -> None:
    """Until the far side ends; the end of the input is passed on."""
    watched: list[int | socket.socket] = [0, sock]
    while True:
        for ready in select.select(watched, [], [])[0]:
            if ready is sock:
                data = sock.recv(CHUNK)
                if not data:
                    return
                while data:
                    data = data[os.write(1, data) :]
                continue
            data = os.read(0, CHUNK)
            if data:
                sock.sendall(data)
            else:
                watched.remove(0)
                sock.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
