"""How do monitoring systems ask a node how it is? A few pages over HTTP, for GET and nothing else.

| page | what it gives |
| --- | --- |
| `/metrics` | counters and gauges in the text format of Prometheus |
| `/status` | the JSON of `gapless status` |
| `/healthz` | 200 while the node runs |
| `/readyz` | 200 when it serves, 503 with the reasons while it does not |

It is not a web server. A request has one line and a few headers, is answered once, and the connection is
closed; larger or slower requests are cut off. There is no TLS and no token: it is meant for the same machine,
or for a network where anybody may look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from gapless.errors import UsageError
from gapless.node.logs import event_log
from gapless.wire.address import Address

log = event_log("gapless.http")

#: Maximum size of a request, and the time in which it must arrive.
REQUEST_BYTES_MAX = 8 * 2**10
REQUEST_SECONDS_MAX = 5.0
#: Maximum number of requests at a time; further ones are refused.
REQUESTS_MAX = 32


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    kind: str = "text/plain; charset=utf-8"


def text_page(text: str, status: HTTPStatus = HTTPStatus.OK) -> Page:
    """A page of plain text."""
    return Page(f"{text}\n".encode(), status)


class HttpDoor:
    """Serves pages at an address."""

    def __init__(self, address: Address, pages: Mapping[str, Callable[[], Page]]) -> None:
        """`pages` are made when they are asked for, by their path."""
        self._listen = address
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen. Raises UsageError when that is not possible."""
        listen = self._listen
        try:
            self._server = await asyncio.start_server(
                self._connected, listen.host, listen.port, limit=REQUEST_BYTES_MAX
            )
        except OSError as error:
            raise UsageError("E183", f"cannot listen at {listen}: {error.strerror or error}") from error
        if not listen.is_loopback:
            log.warning(
                "open_door",
                listens=str(listen),
                missing="everything",
                way_out="anybody who reaches this address may read the status: serve HTTP at 127.0.0.1",
            )

    @property
    def address(self) -> Address:
        """Where it listens, with the port that it really has."""
        assert self._server is not None, "not open"
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    async def close(self) -> None:
        """Stop answering requests."""
        if self._server is not None:
            self._server.close()
        for task in list(self._busy):
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                if len(self._busy) > REQUESTS_MAX:
                    page = text_page("too many requests at once", HTTPStatus.SERVICE_UNAVAILABLE)
                else:
                    page = await self._answer(reader)
                writer.write(_head(page) + page.body)
                await writer.drain()
        except TimeoutError:
            log.repeated("http_timeout", by=None, peer=str(writer.get_extra_info("peername")))
        except OSError:
            # The client has disconnected.
            return
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Page:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return text_page("the request is too long", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        except asyncio.IncompleteReadError:
            return text_page("the request ended too early", HTTPStatus.BAD_REQUEST)
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return text_page("this is no HTTP/1 request", HTTPStatus.BAD_REQUEST)
        if words[0] != b"GET":
            return text_page("only GET is answered here", HTTPStatus.METHOD_NOT_ALLOWED)
        path = words[1].split(b"?", 1)[0].decode("latin-1")
        page = self._pages.get(path)
        if page is None:
            return text_page(f"there are only {', '.join(self._pages)}", HTTPStatus.NOT_FOUND)
        try:
            return page()
        except Exception as error:  # noqa: BLE001
            # A page changes nothing: the client gets the error.
            log.error("request_failed", path=path, reason=repr(error))
            return text_page("internal error; see the log of the node", HTTPStatus.INTERNAL_SERVER_ERROR)


def _head(page: Page) -> bytes:
    lines = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.kind}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
