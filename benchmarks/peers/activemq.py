"""ActiveMQ Classic over STOMP: a persistent topic with a durable subscriber.

    python -m benchmarks.peers.activemq publish|subscribe PORT --count N

With a receipt for every message and the journal synced, which is its default, it answers after one fsync for
each message.
"""

from __future__ import annotations

import re
import shutil
import socket
import time
from pathlib import Path

from benchmarks.machine import Process
from benchmarks.peers.load import READ_BYTES, Latencies, Publisher, body, dialled, options, say

LIBRARIES = Path("/usr/share/activemq/lib")
_CONFIG = """<beans xmlns="http://www.springframework.org/schema/beans"
 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
 xsi:schemaLocation="http://www.springframework.org/schema/beans
 http://www.springframework.org/schema/beans/spring-beans-2.0.xsd http://activemq.apache.org/schema/core
 http://activemq.apache.org/schema/core/activemq-core.xsd">
 <broker xmlns="http://activemq.apache.org/schema/core" useJmx="false" brokerName="bench"
  dataDirectory="{folder}/data" schedulerSupport="false">
  <persistenceAdapter><kahaDB directory="{folder}/data/kahadb"/></persistenceAdapter>
  <systemUsage><systemUsage><storeUsage><storeUsage limit="8 gb"/></storeUsage>
   <tempUsage><tempUsage limit="2 gb"/></tempUsage></systemUsage></systemUsage>
  <transportConnectors><transportConnector name="stomp" uri="stomp+nio://127.0.0.1:{port}"/></transportConnectors>
 </broker></beans>
"""
_STAMP = re.compile(rb"\n\n(\d{20})x")


def start(folder: Path, port: int) -> Process:
    """A broker; it listens."""
    folder.mkdir()
    config = folder / "activemq.xml"
    config.write_text(_CONFIG.format(folder=folder, port=port))
    (folder / "log4j.properties").write_text("log4j.rootLogger=ERROR\n")
    server = Process(
        [shutil.which("java") or "java", "-Xms512M", "-Xmx3G"]
        + [f"-Dlog4j.configuration=file:{folder}/log4j.properties", "-Dactivemq.home=/usr/share/activemq"]
        + [f"-Dactivemq.{name}={folder}" for name in ("base", "conf", "data")]
        + ["-cp", f"{LIBRARIES}/*:{LIBRARIES}/optional/*", "org.apache.activemq.console.Main", "start"]
        + [f"xbean:file:{config}"],
        log=folder.with_suffix(".log"),
    )
    server.wait_for_port(port)
    # It listens a little before it is ready.
    time.sleep(2)
    return server


def frame(command: str, headers: dict[str, object], text: bytes = b"") -> bytes:
    """A frame of STOMP."""
    lines = "".join(f"{key}:{value}\n" for key, value in headers.items())
    return f"{command}\n{lines}\n".encode() + text + b"\0"


def connected(port: int, client: str | None = None) -> socket.socket:
    """A connection that was welcomed. Raises RuntimeError."""
    connection = dialled(port)
    headers: dict[str, object] = {"accept-version": "1.1", "host": "localhost", "heart-beat": "0,0"}
    if client is not None:
        headers["client-id"] = client
    connection.sendall(frame("CONNECT", headers))
    answer = b""
    while b"\0" not in answer:
        answer += connection.recv(READ_BYTES)
    if not answer.startswith(b"CONNECTED"):
        raise RuntimeError(answer.decode(errors="replace"))
    return connection


def publish(port: int, count: int, window: int, rate: float) -> None:
    """Be a publisher that wants a receipt for every persistent message."""

    def message(number: int) -> bytes:
        headers: dict[str, object] = {"destination": "/topic/b", "persistent": "true", "receipt": number}
        return frame("SEND", headers, body())

    Publisher(connected(port), message, lambda data: data.count(b"\0")).run(count, window, rate)


def subscribe(port: int, count: int) -> None:
    """Be the only durable subscriber."""
    connection = connected(port, "reader")
    headers: dict[str, object] = {"id": 1, "destination": "/topic/b", "ack": "auto", "receipt": "subscribed"}
    connection.sendall(frame("SUBSCRIBE", {**headers, "activemq.subscriptionName": "reader"}))
    while b"RECEIPT" not in connection.recv(READ_BYTES):
        pass
    say(ready=True)
    latencies = Latencies()
    taken, rest = 0, b""
    while taken < count:
        data = connection.recv(READ_BYTES)
        if not data:
            raise ConnectionError("activemq hung up")
        *whole, rest = (rest + data).split(b"\0")
        stamps = [match[1] for each in whole if (match := _STAMP.search(each)) is not None]
        latencies.add(stamps)
        taken += len(stamps)
    say(ended=time.monotonic(), taken=taken, cpu_s=time.process_time(), **latencies.figures())


def main() -> None:
    """Be the load client that the arguments ask for."""
    given = options(__doc__).parse_args()
    if given.role == "publish":
        publish(given.port, given.count, min(given.window, 1_000), given.rate)
    else:
        subscribe(given.port, given.count)


if __name__ == "__main__":
    main()
