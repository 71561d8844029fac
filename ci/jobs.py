"""Puts jobs into a server and checks that they are there, for ci/docker.

usage: jobs.py put HOST PORT FILE     jobs, 16 in flight, until SIGTERM, or with exit code 3 until the connection is
                                      closed; each that was acknowledged goes to FILE
       jobs.py check HOST PORT FILE   every job in FILE is there, with its body
       jobs.py fill HOST PORT         until OUT_OF_MEMORY; then every job is served, and another put taken
"""

import signal
import socket
import sys

PATIENCE = 60
CLOSED = 3
IN_FLIGHT = 16
FILLING = b"beanring " * 7300


class Client:
    def __init__(self, host, port):
        self.socket = socket.create_connection((host, int(port)), PATIENCE)
        self.replies = self.socket.makefile("rb")

    def send(self, command, body=None):
        try:
            self.socket.sendall(b"".join([command.encode(), b"\r\n"] + ([] if body is None else [body, b"\r\n"])))
        except ConnectionError as error:
            closed(error)

    def receive(self):
        """Returns the words of a reply's first line, and the body, if there is one."""
        try:
            line = self.replies.readline()
        except ConnectionError as error:
            closed(error)
        if not line.endswith(b"\r\n"):
            closed(f"after {line}")
        words = line.decode().split()
        if words[0] not in ("FOUND", "RESERVED"):
            return words, None
        return words, self.replies.read(int(words[-1]) + 2)[:-2]

    def ask(self, command, body=None):
        self.send(command, body)
        return self.receive()


def closed(why):
    print(f"the connection was closed: {why}")
    sys.exit(CLOSED)


def body(number):
    """Returns a body that differs for each number, of any valid length."""
    return (b"%d " % number + FILLING)[: 1 + number * 7919 % 65535]


def put(client, path):
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    first = 0
    with open(path, "w", encoding="ascii", buffering=1) as acknowledged:
        while not stopped:
            numbers = range(first, first + IN_FLIGHT)
            for number in numbers:
                client.send(f"put 0 0 60 {len(body(number))}", body(number))
            for number in numbers:
                words, _ = client.receive()
                if words[0] != "INSERTED":
                    sys.exit(f"put {number}: {' '.join(words)}")
                print(words[1], number, file=acknowledged)
            first += IN_FLIGHT


def check(client, path):
    with open(path, encoding="ascii") as acknowledged:
        jobs = [line.split() for line in acknowledged]
    if not jobs:
        sys.exit(f"{path}: no job was acknowledged")
    for job, number in jobs:
        words, found = client.ask(f"peek {job}")
        if words[0] != "FOUND" or found != body(int(number)):
            sys.exit(f"job {job}: {' '.join(words)}")
    print(f"{len(jobs)} jobs are there")


def fill(client):
    large = bytes(65535)
    count = 0
    while (words := client.ask(f"put 0 0 60 {len(large)}", large)[0])[0] == "INSERTED":
        count += 1
    assert words == ["OUT_OF_MEMORY"], words
    for _ in range(count):
        words, found = client.ask("reserve")
        assert words[0] == "RESERVED" and found == large, words
        assert client.ask(f"delete {words[1]}")[0] == ["DELETED"]
    words, _ = client.ask("put 0 0 60 1", b"x")
    assert words[0] == "INSERTED", words
    print(f"{count} jobs until OUT_OF_MEMORY")


action, host, port, *rest = sys.argv[1:]
{"put": put, "check": check, "fill": fill}[action](Client(host, port), *rest)
