"""How do ActiveMQ and RabbitMQ filter by content for thousands of subscribers?

    python -m benchmarks.peers.filters activemq|rabbit subscribe PORT --connections N
    python -m benchmarks.peers.filters activemq|rabbit publish PORT --count N

ActiveMQ: a connection for each subscriber, and a selector over two headers. RabbitMQ: a queue for each,
bound to a headers exchange by the same two headers, 100 queues to a connection, which is to its advantage.
Nothing is durable, and nothing is acknowledged by subscribers. The publisher sends as fast as the server
reads; it has finished when the server has taken its last message.

A subscriber process answers each line on standard input with the number of messages so far.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Callable

from benchmarks.machine import raise_limits
from benchmarks.peers import activemq, rabbit
from benchmarks.peers.load import READ_BYTES, Publisher, body, say, told

KEYS = 1_000
QUEUES_PER_CONNECTION = 100
#: What the last bytes of a message are in both protocols, and of nothing else.
STOMP_END = b"x\0"
AMQP_END = b"x\xce"


def key_of(number: int) -> int:
    """Which key an event has: each comes once in a thousand, in no order."""
    return number * 7_919 % KEYS


def count_messages(sockets: list[socket.socket], end: bytes) -> None:
    """Count what comes to all of them, and answer every line on standard input."""
    poll = select.epoll()
    open_sockets = {each.fileno(): each for each in sockets}
    last = dict.fromkeys(open_sockets, b"")
    for each in sockets:
        each.setblocking(False)
        poll.register(each, select.EPOLLIN)
    stdin = sys.stdin.fileno()
    poll.register(stdin, select.EPOLLIN)
    say(ready=True)
    rows = 0
    while True:
        for fd, _ in poll.poll(1.0, 4_096):
            if fd == stdin:
                if not sys.stdin.readline():
                    return
                print(json.dumps({"rows": rows, "now": time.monotonic()}), flush=True)
                continue
            data = open_sockets[fd].recv(READ_BYTES)
            if not data:
                raise ConnectionError("the server hung up")
            # The end of a message may be cut in two.
            rows += (last[fd] + data).count(end)
            last[fd] = data[-1:]


def activemq_subscribe(port: int, connections: int) -> None:
    """Be so many subscribers with selectors."""
    found = []
    for index in range(connections):
        connection = activemq.connected(port)
        key = index % KEYS
        headers: dict[str, object] = {"id": 1, "destination": "/topic/f", "ack": "auto", "receipt": "r"}
        selector = f"name = 'NY' AND key BETWEEN {key} AND {key}"
        connection.sendall(activemq.frame("SUBSCRIBE", {**headers, "selector": selector}))
        answer = b""
        while b"\0" not in answer:
            answer += connection.recv(READ_BYTES)
        if not answer.lstrip().startswith(b"RECEIPT"):
            raise RuntimeError(answer.decode(errors="replace"))
        found.append(connection)
    count_messages(found, STOMP_END)


def rabbit_subscribe(port: int, connections: int) -> None:
    """Be so many queues of a headers exchange."""
    found: list[rabbit.Connection] = []
    for index in range(connections):
        if index % QUEUES_PER_CONNECTION == 0:
            found.append(rabbit.Connection(port))
            found[-1].ask(
                40, 10, b"\0\0" + rabbit.short("hx") + rabbit.short("headers") + b"\0" + rabbit.table({})
            )
        connection, queue = found[-1], f"f{index}"
        connection.declare_queue(queue, 4 | 8, {})
        arguments: dict[str, str | int] = {"x-match": "all", "key": index % KEYS, "name": "NY"}
        bind = rabbit.short(queue) + rabbit.short("hx") + rabbit.short("") + b"\0" + rabbit.table(arguments)
        connection.ask(50, 20, b"\0\0" + bind)
        connection.consume(queue, flags=2)
    count_messages([each.socket for each in found], AMQP_END)


def activemq_publish(port: int, count: int) -> None:
    """Send without confirmations; the last message has a receipt."""

    def message(number: int) -> bytes:
        headers: dict[str, object] = {"destination": "/topic/f", "name": "NY", "key": key_of(number)}
        if number == count - 1:
            headers["receipt"] = "last"
        return activemq.frame("SEND", headers, body())

    connection = activemq.connected(port)
    _publish(connection, message, lambda data: count if b"receipt-id:last" in data else 0, count, count + 1)


def rabbit_publish(port: int, count: int) -> None:
    """Send with confirmations: without, a publisher would run far ahead of the server."""
    connection = rabbit.Connection(port)
    connection.ask(85, 10, b"\0")
    route = rabbit.short("hx") + rabbit.short("")

    def message(number: int) -> bytes:
        headers = rabbit.table({"key": key_of(number), "name": "NY"})
        return rabbit.message(route, struct.pack(">H", 1 << 13 | 1 << 12) + headers + b"\x01", body())

    _publish(connection.socket, message, rabbit.Confirms(), count, 2_000)


def _publish(
    connection: socket.socket,
    message: Callable[[int], bytes],
    confirms: Callable[[bytes], int],
    count: int,
    window: int,
) -> None:
    Publisher(connection, message, confirms).run(count, window, 0.0)
    # The server may still be busy with what it took: leave when told to.
    told()


def main() -> None:
    """Be the load client that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=("activemq", "rabbit"))
    parser.add_argument("role", choices=("publish", "subscribe"))
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    given = parser.parse_args()
    raise_limits()
    if given.role == "subscribe":
        {"activemq": activemq_subscribe, "rabbit": rabbit_subscribe}[given.system](
            given.port, given.connections
        )
    else:
        {"activemq": activemq_publish, "rabbit": rabbit_publish}[given.system](given.port, given.count)


if __name__ == "__main__":
    main()
