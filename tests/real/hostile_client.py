"""Runs inside a guarded sandbox: what a hostile client does to its proxy. Prints what came.

hostile_client.py together URL COUNT    so many requests at once
hostile_client.py crowd URL             more idle connections than there may be, then a request
hostile_client.py flood URL             connections without end for a second, then a request
"""

from __future__ import annotations

import socket
import sys
import time
import urllib.request

PROXY = ("127.0.0.1", 3128)


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode()).strip()


def together(url: str, count: int) -> None:
    """No threads: how many there may be is another matter."""
    held = [socket.create_connection(PROXY) for _ in range(count)]
    for sock in held:
        sock.sendall(f"GET {url} HTTP/1.1\r\n\r\n".encode())
    answers = [sock.makefile("rb").read().decode() for sock in held]
    print(len(answers), {answer.split("\r\n\r\n")[-1] for answer in answers})


def crowd(url: str) -> None:
    held = [socket.create_connection(PROXY) for _ in range(256)]
    for sock in held:
        sock.sendall(b"GET")
    with socket.create_connection(PROXY) as sock:
        sock.settimeout(30)
        print(sock.recv(12).decode())
    for sock in held:
        sock.close()
    print(fetch_when_there_is_room(url))


def flood(url: str) -> None:
    until = time.monotonic() + 1
    while time.monotonic() < until:
        sock = socket.create_connection(PROXY)
        sock.sendall(b"\x05")
        sock.close()
    print(fetch_when_there_is_room(url))


def fetch_when_there_is_room(url: str) -> str:
    """The proxy learns of the ends one after the other."""
    until = time.monotonic() + 20
    while True:
        try:
            return fetch(url)
        except OSError:
            if time.monotonic() > until:
                raise


if __name__ == "__main__":
    name, url, *more = sys.argv[1:]
    if name == "together":
        together(url, int(more[0]))
    else:
        {"crowd": crowd, "flood": flood}[name](url)
