"""When does a node serve bulk reads? From the first request on, in a thread, until the node stops.

Loading Arrow Flight takes a tenth of a second that most nodes never need to spend. So the door is opened by
the first client that asks where it is, or at once where the network description names an address for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from gapless.errors import UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import Tick
from gapless.node.config import NodeConfig
from gapless.node.logs import event_log
from gapless.wire.address import Address

if TYPE_CHECKING:
    from gapless.node.bulk_reads.server import Service
    from gapless.store.history import History

log = event_log("gapless.bulk")

#: A node that stops waits so long for reads that are under way.
CLOSE_SECONDS_MAX = 5.0


class BulkReads:
    """Where the events of one node are read in bulk."""

    def __init__(
        self,
        config: NodeConfig,
        histories: Callable[[TopicId], dict[PubendId, History]],
        horizon: Callable[[PubendId], tuple[Tick, Tick]],
    ) -> None:
        """`histories` and `horizon` are called in any thread: see `server.BulkSource`."""
        self._config = config
        self._histories = histories
        self._horizon = horizon
        self._service: Service | None = None
        self._opening: asyncio.Task[str] | None = None
        self._closed = False

    @property
    def address(self) -> str | None:
        """Where it is, as Flight writes it; None while it is shut."""
        if self._service is None:
            return None
        config = self._config
        scheme = "grpc" if config.tls is None else "grpc+tls"
        listen = self._listen if config.broker in config.bulk else config.client_address(config.broker)
        return f"{scheme}://{Address(listen.host, self._service.port)}"

    @property
    def _listen(self) -> Address:
        return self._config.bulk.get(self._config.broker, Address(self._config.listen.host, 0))

    def renew(self, config: NodeConfig) -> None:
        """Calls from now on need these tokens. Certificates stay: Flight reads them once."""
        self._config = config
        if self._service is not None:
            self._service.door.tokens = config.tokens

    async def opened(self) -> str:
        """Where it is; it is opened if it was shut. Raises UsageError when that is not possible."""
        if self._closed:
            raise UsageError("E188", "node shutting down; reconnect elsewhere", retry=True)
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="bulk door")
        try:
            return await asyncio.shield(self._opening)
        except UsageError:
            # The next request tries again.
            self._opening = None
            raise

    async def _open(self) -> str:
        self._service = await asyncio.get_running_loop().run_in_executor(None, self._made)
        address = self.address
        assert address is not None, "it was just opened"
        log.info("bulk_listening", listens=address)
        return address

    def _made(self) -> Service:
        """Blocks for a moment, the first time."""
        listen = self._listen
        try:
            from gapless.node.bulk_reads.server import BulkSource, Service  # noqa: PLC0415  # see above

            source = BulkSource(self._histories, self._horizon)
            return Service(listen, source, self._config.tls, self._config.tokens)
        except OSError as error:
            reason = str(error).splitlines()[0]
            raise UsageError("E183", f"cannot listen at {listen} for bulk reads: {reason}") from error
        except ImportError as error:
            log.error("bulk_not_loaded", reason=str(error))
            raise UsageError("E181", "this node cannot load its bulk-read libraries; see its log") from error

    async def close(self) -> None:
        """Let reads that are under way end with their next batch; those that are not taken are abandoned."""
        self._closed = True
        if self._opening is not None:
            await asyncio.wait([self._opening])
        service, self._service = self._service, None
        if service is None:
            return
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def stop() -> None:
            service.stop()
            # A reader that held it up for long: the node has gone on without it, and its loop may be closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=stop, name="gapless-bulk-close", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), CLOSE_SECONDS_MAX)
        except TimeoutError:
            log.warning("slow_reader", reason="a bulk read was under way when the node stopped")
