"""What happened, in words? One text line per event, effect and message, and the story of one tick.

Logs, scenarios, failed simulations and the dashboard all show these lines, so that whoever can read one
of them can read the others. A line is compact: `knowledge trades 10..14 data 11 12 first-time`. A stamp is
written `{s1:1.2}` and only where it is not `always`; many rows are counted instead of listed.

`story` picks, out of a whole run, the lines that led a single tick of a single pubend to where it is now.
What only repeats an earlier line (an ack of everything up to a tick repeats all earlier acks) is left out.

Implements docs/protocol.md, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias, assert_never

import numpy as np

from gapless.model.batch import EventBatch
from gapless.model.epochs import ALWAYS, Epochs, epoch_text
from gapless.model.ids import BrokerId, PubendId, SubscriptionId
from gapless.model.stream import Run
from gapless.model.ticks import TICK_MIN, Tick, TickArray, TickRange, TickSet
from gapless.protocol.creations import Creation
from gapless.protocol.effects import (
    AcceptPublish,
    AppendRecord,
    BatchRecord,
    ConfirmChange,
    ConfirmSubscription,
    Deliver,
    Effect,
    ReadRecords,
    Record,
    RefusePublish,
    ReleaseRecord,
    RememberTopics,
    ReserveRecord,
    SendMessage,
    StartRecord,
    StartTimer,
    TellHorizon,
    TrimLog,
)
from gapless.protocol.events import (
    BrokerStarted,
    DeliveryTaken,
    Event,
    FilterChangeRequested,
    LinkDown,
    LinkUp,
    MessageReceived,
    Order,
    PublishRequested,
    RecordDurable,
    RecordFailed,
    RecordsRead,
    RetentionMoved,
    RoamersReached,
    SubscribeRequested,
    SubscriberEvent,
    SubscriberReady,
    SubscriberSlow,
    SubscriptionsRestored,
    TimerFired,
    TopicsLearned,
    UnsubscribeRequested,
)
from gapless.protocol.messages import (
    AckExpectedMessage,
    AckMessage,
    AdvertisementAckMessage,
    AdvertisementMessage,
    KnowledgeMessage,
    LinkStatusMessage,
    LogKnownMessage,
    Message,
    NackMessage,
    SidewaysMessage,
    StartGrantMessage,
    StartRequestMessage,
    TopicsMessage,
)

Item: TypeAlias = Event | Effect | Message
#: One line of a run: when (in the host's monotonic milliseconds), at which broker, and what.
Entry: TypeAlias = tuple[int, BrokerId, Item]
#: The subscriptions behind the slots of one broker's deliveries.
SlotNames: TypeAlias = Mapping[int, SubscriptionId]

#: Maximum number of ticks or slots listed individually; more are counted.
LISTED_MAX = 8


def describe(item: Item, names: SlotNames | None = None) -> str:
    """One line for an event, effect or message; `names` gives the slots of deliveries their names.

    >>> describe(NackMessage(pubend=PubendId("trades"), ticks=TickRange(10, 12)))
    'nack trades 10..12'
    """
    if isinstance(item, Message):
        return _message_text(item)
    if isinstance(item, Effect):
        return _effect_text(item, names or {})
    return _event_text(item)


def mentions(item: Item, pubend: PubendId, tick: Tick) -> bool:
    """Whether the item carries, asks for, acknowledges or trims that tick of that pubend.

    >>> mentions(NackMessage(pubend=PubendId("trades"), ticks=TickRange(10, 12)), PubendId("trades"), 12)
    False
    """
    if isinstance(item, Message):
        return _message_mentions(item, pubend, tick)
    if isinstance(item, Effect):
        return _effect_mentions(item, pubend, tick)
    return _event_mentions(item, pubend, tick)


def story(entries: Iterable[Entry], pubend: PubendId, tick: Tick) -> str:
    """What led that tick to where it is now, as lines of time, broker, neighbour and text.

    Beside what mentions the tick, it shows the flush of its record, the taking of its delivery, and
    every start of a broker, which loses what the broker knew. Repetitions are left out.
    """
    run = list(entries)
    names = _slot_names(run)
    lines = [
        (str(time), str(broker), *_columns(item, names.get(broker, {})))
        for time, broker, item in _told(run, pubend, tick)
    ]
    widths = [max((len(line[column]) for line in lines), default=0) for column in range(3)]
    return "\n".join(
        f"{time:>{widths[0]}}  {broker:<{widths[1]}}  {peer:<{widths[2]}}  {text}"
        for time, broker, peer, text in lines
    )


# ---- texts -------------------------------------------------------------------------------------------


def _message_text(message: Message) -> str:
    match message:
        case KnowledgeMessage(pubend=pubend, runs=runs, batch=batch):
            first_time = " first-time" if message.first_time else ""
            final = f" final {_before(message.final_before)}" if message.final_before > TICK_MIN else ""
            log = f" of {message.log}" if message.log.id and not runs else ""
            return f"knowledge {pubend} {_runs_text(runs)}{_data_text(batch)}{first_time}{final}{log}"
        case AckMessage(pubend=pubend):
            return f"ack {pubend} {_runs_text(_ack_runs(message))}"
        case NackMessage(pubend=pubend, ticks=ticks):
            return f"nack {pubend} {ticks}"
        case AckExpectedMessage(pubend=pubend, before=before):
            return f"ack-expected {pubend} {_before(before)}"
        case AdvertisementMessage():
            return _advertisement_text(message)
        case AdvertisementAckMessage(root=root, origin=origin, version=version, staged=staged):
            held = "send the whole" if version is None else f"version {epoch_text(version)}"
            if staged is not None:
                held = f"part {staged[1]} of version {epoch_text(staged[0])}"
            return f"advertised to {root} by {origin} {held}"
        case StartRequestMessage(pubend=pubend, edge=edge, epoch=epoch, wanted=wanted):
            since = "now" if wanted is None else wanted
            return f"start-request {pubend} {{{edge}:{epoch_text(epoch)}}} from {since}"
        case StartGrantMessage(pubend=pubend, edge=edge, epoch=epoch, start=start):
            return f"start-grant {pubend} {{{edge}:{epoch_text(epoch)}}} from {start}"
        case LinkStatusMessage() | TopicsMessage() | LogKnownMessage():
            return _news_text(message)
        case SidewaysMessage(cell=cell, message=inner):
            return f"sideways to {cell}: {_message_text(inner)}"
        case _:
            assert_never(message)


def _news_text(message: LinkStatusMessage | TopicsMessage | LogKnownMessage) -> str:
    if isinstance(message, LogKnownMessage):
        return f"log-known {message.pubend} {message.log} {_before(message.known)}"
    if isinstance(message, TopicsMessage):
        return f"topics {_creations_text(message.creations)}"
    topics = f" topics {message.topics:x}" if message.topics else ""
    return f"link-status reaches {' '.join(sorted(message.reaches)) or 'nothing'}{topics}"


def _advertisement_text(message: AdvertisementMessage) -> str:
    added = sorted(f"{topic} where {condition}" for topic, condition in message.added)
    removed = sorted(f"{topic} where {condition}" for topic, condition in message.removed)
    if message.base is None:
        changes = f" {_listed(added, 'filters', '; ')}" if added else " nothing"
    else:
        changes = f" since {epoch_text(message.base)}"
        changes += f" + {_listed(added, 'filters', '; ')}" if added else ""
        changes += f" - {_listed(removed, 'filters', '; ')}" if removed else ""
    version = f"version {epoch_text(message.version)}"
    if message.total is not None:
        version += f" (part {message.part}, {message.total} filters in all)"
    return f"advertise to {message.root} by {message.origin} {version}{changes}{_stamp_text(message.epochs)}"


def _effect_text(effect: Effect, names: SlotNames) -> str:
    match effect:
        case SendMessage(to=to, message=message):
            return f"-> {to}  {_message_text(message)}"
        case AppendRecord(pubend=pubend, token=token, record=record):
            return f"append {pubend} #{token} {_record_text(record)}"
        case ReadRecords(pubend=pubend, ticks=ticks, rows_max=rows_max):
            return f"read {pubend} {ticks} at most {rows_max} rows"
        case TrimLog(pubend=pubend, before=before):
            return f"trim {pubend} {_before(before)}"
        case AcceptPublish(pubend=pubend, token=token, ticks=ticks):
            return f"accept {pubend} #{token} as {_ticks_text(ticks)}"
        case RefusePublish(pubend=pubend, token=token, reason=reason):
            return f"refuse {pubend} #{token}: {reason}"
        case ConfirmSubscription(subscription=subscription, pubend=pubend, start=start):
            lost = "" if effect.lost_from is None else f" lost from {effect.lost_from} on"
            return f"confirm {subscription} {pubend} from {start}{lost}"
        case ConfirmChange(subscription=subscription, pubend=pubend, condition=condition, since=since):
            return f"confirm {subscription} {pubend} where {condition} from {since}"
        case Deliver() | TellHorizon():
            return _deliver_text(effect, names)
        case RememberTopics(creations=creations):
            return f"remember topics {_creations_text(creations)}"
        case StartTimer(at_ms=at_ms, spread_ms=spread_ms):
            return f"start timer {at_ms} ms" + (f" spread {spread_ms} ms" if spread_ms else "")
        case _:
            assert_never(effect)


def _received_text(event: MessageReceived) -> str:
    return " and ".join(_message_text(message) for message in (event.message, *event.also))


def _event_text(event: Event) -> str:
    match event:
        case BrokerStarted():
            return "started"
        case PublishRequested(pubend=pubend, token=token, rows=rows):
            return f"publish {pubend} #{token} {rows.num_rows} rows"
        case RecordDurable() | RecordFailed() | RecordsRead() | RetentionMoved():
            return _log_event_text(event)
        case MessageReceived(sender=sender):
            return f"<- {sender}  {_received_text(event)}"
        case LinkUp(neighbour=neighbour):
            return f"link to {neighbour} is up"
        case LinkDown(neighbour=neighbour):
            return f"link to {neighbour} is down"
        case TopicsLearned(creations=creations):
            return f"learned topics {_creations_text(creations)}"
        case TimerFired():
            return "timer fired"
        case (
            SubscribeRequested()
            | SubscriptionsRestored()
            | FilterChangeRequested()
            | UnsubscribeRequested()
            | DeliveryTaken()
            | SubscriberReady()
            | SubscriberSlow()
            | RoamersReached()
        ):
            return _subscriber_text(event)
        case _:
            assert_never(event)


def _log_event_text(event: RecordDurable | RecordFailed | RecordsRead | RetentionMoved) -> str:
    match event:
        case RecordDurable(pubend=pubend, token=token):
            return f"durable {pubend} #{token}"
        case RecordFailed(pubend=pubend, token=token, reason=reason):
            return f"not durable {pubend} #{token}: {reason}"
        case RecordsRead(pubend=pubend, ticks=ticks, batch=batch):
            return f"was read {pubend} {ticks}{_data_text(batch)}"
        case RetentionMoved(pubend=pubend, kept_from=kept_from):
            return f"keep {pubend} from {kept_from}"
        case _:
            assert_never(event)


def _subscriber_text(event: SubscriberEvent) -> str:
    match event:
        case SubscribeRequested(subscription=subscription, topic=topic, condition=condition):
            total = " in total order" if event.order is Order.TOTAL else ""
            return f"subscribe {subscription} {topic} where {condition}{total}{_start_text(event.start)}"
        case SubscriptionsRestored(requests=requests):
            return (
                "restore "
                + ", ".join(_subscriber_text(each) for each in requests[:LISTED_MAX])
                + (f" and {len(requests) - LISTED_MAX} more" if len(requests) > LISTED_MAX else "")
            )
        case FilterChangeRequested(subscription=subscription, condition=condition):
            return f"change {subscription} where {condition}"
        case UnsubscribeRequested(subscription=subscription):
            return f"unsubscribe {subscription}"
        case DeliveryTaken(serial=serial, also=also):
            return " ".join(["taken delivery", *map(str, (serial, *also))])
        case SubscriberReady(subscription=subscription):
            return f"ready {subscription}"
        case RoamersReached(pubend=pubend, before=before, roamers=roamers):
            return f"roamers reached {pubend} {_before(before)} ({roamers})"
        case SubscriberSlow(subscription=subscription, positions=positions):
            taken = "".join(f" {pubend} {_before(positions[pubend])}" for pubend in sorted(positions))
            return f"{'away' if event.away else 'slow'} {subscription}" + (f" took{taken}" if taken else "")
        case _:
            assert_never(event)


def _start_text(start: Tick | Mapping[PubendId, Tick] | None) -> str:
    if start is None:
        return ""
    if isinstance(start, Mapping):
        return " from" + "".join(f" {pubend} {start[pubend]}" for pubend in sorted(start))
    return f" from {start}"


def _creations_text(creations: Sequence[Creation]) -> str:
    return _listed([f"{each.topic} {each.pubend}@{each.broker}" for each in creations], "creations", ", ")


def _record_text(record: Record) -> str:
    match record:
        case BatchRecord(batch=batch):
            return f"data {_ticks_text(batch.ticks)}"
        case ReleaseRecord(before=before):
            return f"release ..{before}"
        case ReserveRecord(before=before):
            return f"reserve {_before(before)}"
        case StartRecord(edge=edge, epoch=epoch, start=start):
            return f"start {{{edge}:{epoch_text(epoch)}}} from {start}"
        case _:
            assert_never(record)


def _deliver_text(effect: Deliver | TellHorizon, names: SlotNames) -> str:
    if isinstance(effect, TellHorizon):
        return f"tell horizon {effect.pubend} {_before(effect.before)}"
    slots = sorted({int(slot) for slot in effect.slots})
    named = [str(names.get(slot, f"slot {slot}")) for slot in slots]
    shares = [_share_text(effect, slot) for slot in slots[:LISTED_MAX]]
    if len(slots) <= LISTED_MAX and len(set(shares)) > 1:
        parts = [f"{share} -> {name}" for share, name in zip(shares, named, strict=True)]
        return f"deliver {', '.join(parts)}"
    what = shares[0] if len(set(shares)) == 1 and len(slots) <= LISTED_MAX else _share_text(effect, None)
    return f"deliver {what} -> {_listed(named, 'subscriptions', ' ')}"


def _share_text(effect: Deliver, slot: int | None) -> str:
    """The rows that one slot gets, or any slot, as stretches of one pubend each."""
    rows = effect.rows if slot is None else effect.rows[effect.slots == slot]
    rows = np.unique(rows) if slot is None else rows
    if effect.source is None:
        return f"{effect.pubends[0]} {_ticks_text(effect.batch.ticks[rows])}"
    if len(rows) > LISTED_MAX:
        return f"{' and '.join(effect.pubends)} {_ticks_text(effect.batch.ticks[rows])}"
    pairs = [(effect.pubends[int(effect.source[row])], int(effect.batch.ticks[row])) for row in rows]
    stretches = groupby(pairs, key=lambda pair: pair[0])
    return " ".join(f"{pubend} {' '.join(str(tick) for _, tick in pairs)}" for pubend, pairs in stretches)


def _ticks_text(ticks: TickArray | range) -> str:
    if not len(ticks):
        return "nothing"
    if len(ticks) <= LISTED_MAX:
        return " ".join(str(tick) for tick in ticks)
    return f"{len(ticks)} events {TickRange(int(ticks[0]), int(ticks[-1]) + 1)}"


def _data_text(batch: EventBatch | None) -> str:
    return f" data {_ticks_text(batch.ticks)}" if batch is not None and len(batch) else ""


def _listed(texts: Sequence[str], kind: str, separator: str) -> str:
    return separator.join(texts) if len(texts) <= LISTED_MAX else f"{len(texts)} {kind}"


def _runs_text(runs: Sequence[Run]) -> str:
    """Ranges that share a stamp stand together before it; a comma begins the next stamp."""
    if len(runs) > LISTED_MAX:
        return f"{len(runs)} runs {TickRange(runs[0][0], runs[-1][1])}"
    parts = []
    for stamp, same in groupby(runs, key=lambda run: run[2]):
        ticks = TickSet.from_pairs((start, stop) for start, stop, _ in same)
        parts.append(f"{ticks}{_stamp_text(stamp)}")
    return ", ".join(parts) or "nothing"


def _stamp_text(stamp: Epochs) -> str:
    return "" if stamp == ALWAYS else f" {{{stamp}}}"


def _ack_runs(message: AckMessage) -> list[Run]:
    starts = [TICK_MIN, *(stop for stop, _ in message.runs)]
    return [(start, stop, stamp) for start, (stop, stamp) in zip(starts, message.runs, strict=False)]


def _before(tick: Tick) -> str:
    return str(TickRange(TICK_MIN, tick))


# ---- what speaks of a tick ---------------------------------------------------------------------------


def _message_mentions(message: Message, pubend: PubendId, tick: Tick) -> bool:
    match message:
        case SidewaysMessage(message=inner):
            return _message_mentions(inner, pubend, tick)
        case AdvertisementMessage() | AdvertisementAckMessage() | LinkStatusMessage() | TopicsMessage():
            return False
        case StartRequestMessage() | StartGrantMessage() | LogKnownMessage():
            return False
        case KnowledgeMessage(runs=runs, final_before=final_before):
            return message.pubend == pubend and (tick < final_before or _covered(runs, tick))
        case AckMessage(runs=ack_runs):
            return message.pubend == pubend and bool(ack_runs) and tick < ack_runs[-1][0]
        case NackMessage(ticks=ticks):
            return message.pubend == pubend and tick in ticks
        case AckExpectedMessage(before=before):
            return message.pubend == pubend and tick < before
        case _:
            assert_never(message)


def _effect_mentions(effect: Effect, pubend: PubendId, tick: Tick) -> bool:
    match effect:
        case SendMessage(message=message):
            return _message_mentions(message, pubend, tick)
        case AppendRecord(record=record):
            return (
                effect.pubend == pubend
                and isinstance(record, BatchRecord)
                and _holds(record.batch.ticks, tick)
            )
        case ReadRecords(ticks=asked):
            return effect.pubend == pubend and tick in asked
        case TrimLog(before=before):
            return effect.pubend == pubend and tick < before
        case AcceptPublish(ticks=accepted):
            return effect.pubend == pubend and tick in accepted
        case Deliver():
            return _delivers(effect, pubend, tick)
        case TellHorizon(before=before):
            return effect.pubend == pubend and tick < before
        case RefusePublish() | ConfirmSubscription() | ConfirmChange() | RememberTopics() | StartTimer():
            return False
        case _:
            assert_never(effect)


def _event_mentions(event: Event, pubend: PubendId, tick: Tick) -> bool:
    match event:
        case MessageReceived(message=message, also=also):
            return any(_message_mentions(each, pubend, tick) for each in (message, *also))
        case RecordsRead(ticks=ticks):
            return event.pubend == pubend and tick in ticks
        case SubscriberSlow(positions=positions):
            # What it had not taken was thrown away, so it asks again for all of that.
            return pubend in positions and positions[pubend] <= tick
        case BrokerStarted() | LinkUp() | LinkDown() | TopicsLearned() | TimerFired():
            return False
        case PublishRequested() | RecordDurable() | RecordFailed() | RetentionMoved():
            return False
        case SubscribeRequested() | SubscriptionsRestored() | FilterChangeRequested():
            return False
        case UnsubscribeRequested() | DeliveryTaken() | SubscriberReady() | RoamersReached():
            return False
        case _:
            assert_never(event)


def _covered(runs: Sequence[Run], tick: Tick) -> bool:
    return any(start <= tick < stop for start, stop, _ in runs)


def _holds(ticks: TickArray, tick: Tick) -> bool:
    at = int(np.searchsorted(ticks, tick))
    return at < len(ticks) and int(ticks[at]) == tick


def _delivers(effect: Deliver, pubend: PubendId, tick: Tick) -> bool:
    if pubend not in effect.pubends:
        return False
    at = effect.batch.ticks[effect.rows] == tick
    if effect.source is not None:
        at &= effect.source[effect.rows] == effect.pubends.index(pubend)
    return bool(at.any())


# ---- the story of a tick -----------------------------------------------------------------------------


def _columns(item: Item, names: SlotNames) -> tuple[str, str]:
    """The neighbour that a message comes from or goes to, with an arrow, and the text."""
    if isinstance(item, MessageReceived):
        return f"<- {item.sender}", _received_text(item)
    if isinstance(item, SendMessage):
        return f"-> {item.to}", _message_text(item.message)
    return "", describe(item, names)


def _slot_names(entries: Sequence[Entry]) -> dict[BrokerId, dict[int, SubscriptionId]]:
    # A slot that is used again takes the name of its last subscription, which is the one in question.
    names: dict[BrokerId, dict[int, SubscriptionId]] = {}
    for _, broker, item in entries:
        if isinstance(item, ConfirmSubscription):
            names.setdefault(broker, {})[item.slot] = item.subscription
    return names


def _told(entries: Sequence[Entry], pubend: PubendId, tick: Tick) -> list[Entry]:
    chosen: list[Entry] = []
    requests = _publish_requests(entries, pubend, tick)
    #: What a broker still owes the story: the flush of a record, the taking of a delivery.
    flushes: dict[BrokerId, int] = {}
    deliveries: set[tuple[BrokerId, int]] = set()
    said: set[tuple[object, ...]] = set()
    for at, entry in enumerate(entries):
        _, broker, item = entry
        match item:
            case BrokerStarted():
                flushes.pop(broker, None)
                deliveries = {owed for owed in deliveries if owed[0] != broker}
                said = {line for line in said if line[0] != broker}
                chosen.append(entry)
            case PublishRequested() if at in requests:
                chosen.append(entry)
            case RecordDurable(token=token) | RecordFailed(token=token):
                if item.pubend == pubend and token >= flushes.get(broker, token + 1):
                    del flushes[broker]
                    chosen.append(entry)
            case DeliveryTaken(serial=serial) if (broker, serial) in deliveries:
                deliveries.remove((broker, serial))
                chosen.append(entry)
            case _ if mentions(item, pubend, tick):
                gist = _gist(item, tick)
                if gist is None or (broker, *gist) not in said:
                    chosen.append(entry)
                if gist is not None:
                    said.add((broker, *gist))
                if isinstance(item, AppendRecord):
                    flushes[broker] = item.token
                if isinstance(item, Deliver):
                    deliveries.add((broker, item.serial))
            case _:
                pass
    return chosen


def _publish_requests(entries: Sequence[Entry], pubend: PubendId, tick: Tick) -> set[int]:
    """The positions of the requests that were accepted as this tick: the last ones with the token."""
    latest: dict[tuple[BrokerId, PubendId, int], int] = {}
    found: set[int] = set()
    for at, (_, broker, item) in enumerate(entries):
        if isinstance(item, PublishRequested):
            latest[broker, item.pubend, item.token] = at
        elif isinstance(item, AcceptPublish) and mentions(item, pubend, tick):
            request = latest.get((broker, pubend, item.token))
            found |= set() if request is None else {request}
    return found


def _gist(item: Item, tick: Tick) -> tuple[object, ...] | None:
    """What a cumulative item says of the tick: saying the same again tells nothing. None for the others."""
    match item:
        case SendMessage(to=to, message=message):
            inner = _gist(message, tick)
            return None if inner is None else ("to", to, *inner)
        case MessageReceived(sender=sender, message=message, also=()):
            inner = _gist(message, tick)
            return None if inner is None else ("from", sender, *inner)
        case SidewaysMessage(cell=cell, message=message):
            inner = _gist(message, tick)
            return None if inner is None else ("sideways", cell, *inner)
        case KnowledgeMessage(runs=runs) if not _covered(runs, tick):
            return ("final",)
        case AckMessage():
            stamps = [stamp for start, stop, stamp in _ack_runs(item) if start <= tick < stop]
            return ("ack", *stamps)
        case AckExpectedMessage():
            return ("ack-expected",)
        case TrimLog():
            return ("trim",)
        case _:
            return None
