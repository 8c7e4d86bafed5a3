"""What does a broker have for one pubend? A path: the istream, an ostream for each cell below, the ack.

Implements docs/protocol.md, section 5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gapless.model.batch import EventBatch
from gapless.model.epochs import Epoch
from gapless.model.ids import BrokerId, CellId, PubendId
from gapless.model.logs import UNNAMED, LogLife
from gapless.model.stream import Run
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick
from gapless.protocol.acks import AckRuns
from gapless.protocol.effects import Effect, SendMessage
from gapless.protocol.istream import Istream
from gapless.protocol.messages import AckMessage, KnowledgeMessage, LogKnownMessage
from gapless.protocol.network import Network, Tree
from gapless.protocol.ostream import Ostream, Telling, split
from gapless.protocol.pubend import Pubend
from gapless.protocol.step import Memory


class Standing(Enum):
    """How what is said of a log relates to what is known here."""

    #: It is about the log that is known.
    CURRENT = "current"
    #: It is about that log in a later life of its host.
    LATER_LIFE = "later life"
    #: It is about a log that has taken the place of the one that is known.
    RENEWED = "renewed"
    #: It comes from an earlier life of the host, from one that has fallen behind, or from an older copy.
    CONTRADICTED = "contradicted"


@dataclass(slots=True)
class Path:
    """Everything a broker has for one pubend."""

    tree: Tree
    istream: Istream
    ostreams: dict[CellId, Ostream]
    #: The next cell towards the pubend; None at the pubend's own cell.
    upstream: CellId | None
    pubend: Pubend | None = None
    #: The broker of the upstream cell that last sent knowledge.
    last_sender: BrokerId | None = None
    #: The ack that was last sent, and when.
    ack_sent: AckRuns = ()
    ack_sent_ms: int | None = None
    #: Where there is no cell below: what the local subends had acked, and as of which epoch, for that ack.
    ack_of: tuple[Tick, Epoch] | None = None
    #: Something happened that may change the ack.
    ack_dirty: bool = False
    #: When it was last said upstream that what came from there contradicts what is known.
    contradicted_ms: int | None = None
    #: One past the last tick that a cell below was told anything of.
    told_before: Tick = TICK_MIN

    @staticmethod
    def made(network: Network, cell: CellId, pubend: PubendId) -> Path:
        """The path of a pubend at a broker of a cell."""
        tree, runs_max = network.tree_of(pubend), network.parameters.stream_runs_max
        below = [each for each in tree.children[cell] if tree.edges[each]]
        ostreams = {each: Ostream(each, tree.edges[each], runs_max) for each in below}
        return Path(tree, Istream(pubend, network.parameters), ostreams, tree.parent.get(cell))

    def knows(self, batch: EventBatch | None) -> bool:
        """Whether anything is known already of the ticks of a batch."""
        if batch is None or batch.first >= self.istream.frontier:
            return False
        return bool(self.istream.stream.known.runs(batch.first, batch.last + 1))

    def standing(self, log: LogLife) -> Standing:
        """How a log that somebody speaks of relates to the one that is known here."""
        own = self.istream.log
        if log == own or log is UNNAMED:
            return Standing.CURRENT
        if own is UNNAMED:
            return Standing.LATER_LIFE
        known, events = self.istream.heard, self.istream.events_stop
        if log.life <= own.life or (log.id == own.id and (known > log.floor or events > log.events)):
            return Standing.CONTRADICTED
        return Standing.LATER_LIFE if log.id == own.id else Standing.RENEWED

    def log_known(self, now_ms: int, repeat_ms: int) -> LogKnownMessage | None:
        """What contradicts upstream; None if that was said just now."""
        if self.contradicted_ms is not None and now_ms < self.contradicted_ms + repeat_ms:
            return None
        self.contradicted_ms, istream = now_ms, self.istream
        return LogKnownMessage(
            pubend=istream.pubend, log=istream.log, known=istream.heard, events=istream.events_stop
        )

    def renew(self, log: LogLife) -> None:
        """The pubend has begun another log: forget everything about the old one."""
        self.istream.renew(log)
        self.ostreams = {
            cell: Ostream(cell, each.edges, each.runs_max) for cell, each in self.ostreams.items()
        }
        self.ack_again()

    def log_only(self) -> KnowledgeMessage:
        """Knowledge that says which log there is, and what is final in it."""
        return self._knowledge((), None, first_time=False)

    def may_ack(self, cell: CellId) -> bool:
        """Whether a broker of this cell has anybody to ack to, and to ack for."""
        return self.upstream is not None and bool(self.tree.edges[cell])

    def log_wanted(self) -> AckMessage:
        """An ack of nothing, for no log: whoever has a log answers which one (clause 14.4)."""
        return AckMessage(pubend=self.istream.pubend, runs=())

    def told(self, telling: Telling, rows_max: int) -> Iterator[KnowledgeMessage]:
        """The messages that tell a cell something."""
        final = self.istream.final_before
        for runs, batch in split(telling, rows_max):
            # What is final needs no runs: `final_before` says it all.
            above = tuple((max(start, final), stop, stamp) for start, stop, stamp in runs if stop > final)
            yield self._knowledge(above, batch, first_time=telling.first_time)

    def _knowledge(
        self, runs: tuple[Run, ...], batch: EventBatch | None, *, first_time: bool
    ) -> KnowledgeMessage:
        istream = self.istream
        self.told_before = max(self.told_before, istream.final_before, runs[-1][1] if runs else TICK_MIN)
        return KnowledgeMessage(
            pubend=istream.pubend,
            runs=runs,
            batch=batch,
            first_time=first_time,
            final_before=istream.final_before,
            log=istream.log,
        )

    def forget_to_bounds(self, position: Tick, behind: Tick, bytes_max: int = TICK_MAX) -> None:
        """Forget what is beyond the bounds; all who are in step have had what is below `position`.

        The lowest of the others is at `behind`.
        """
        for start, stop in self.istream.forget_to_bounds(position, bytes_max, behind):
            for ostream in self.ostreams.values():
                ostream.forget(start, stop)

    def deadlines_ms(self, ack_delay_ms: int) -> list[int | None]:
        """When the pubend itself, or an ack that was put off, must be looked at again."""
        at = [None if self.pubend is None else self.pubend.deadline_ms()]
        if self.ack_dirty and self.ack_sent_ms is not None:
            at.append(self.ack_sent_ms + ack_delay_ms)
        return at

    def check(self) -> None:
        """Raise if an invariant is broken."""
        self.istream.check()
        for ostream in self.ostreams.values():
            ostream.check()
        if self.pubend is not None:
            self.pubend.check()

    def ack_again(self) -> None:
        """Whatever was acked, the pubend may not know of it: say it again."""
        self.ack_sent, self.ack_sent_ms, self.ack_of, self.ack_dirty = (), None, None, True


def logs_told(paths: Iterable[Path], network: Network, neighbours: Sequence[BrokerId]) -> list[Effect]:
    """Tell those neighbours that are below which logs there are."""
    return [
        SendMessage(to=neighbour, message=path.log_only())
        for path in paths
        for neighbour in neighbours
        if path.istream.log.id and network.cell_of[neighbour] in path.ostreams
    ]


def untold(paths: Mapping[PubendId, Path]) -> dict[PubendId, Tick]:
    """Where the logs ended of which this life has told nothing new: its reservations hide that no longer.

    A folder that is an older copy has older copies of all its logs. The first that others contradict ends the
    broker, and its next life must not seem to know more of the rest than this one did.
    """
    return {
        pubend: path.pubend.log.floor
        for pubend, path in paths.items()
        if path.pubend is not None and path.told_before <= path.pubend.log.floor
    }


def memory_of(paths: Collection[Path]) -> Memory:
    """How much paths hold."""
    streams = [path.istream.stream for path in paths]
    ostreams = [ostream for path in paths for ostream in path.ostreams.values()]
    return Memory(
        streams=len(streams),
        rows=sum(stream.rows.rows for stream in streams),
        row_bytes=sum(stream.rows.nbytes for stream in streams),
        runs=sum(len(stream.known) for stream in streams)
        + sum(len(ostream.passed) + len(ostream.curious) for ostream in ostreams),
    )
