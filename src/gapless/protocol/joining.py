"""When do several messages say the same as one? Knowledge that a busy broker finds waiting is joined first.

A broker that is busy finds many messages when it looks again, each with an event or two. What a step costs
hardly depends on how many events it brings, so it takes them as one message: the busier a broker is, the
less each event costs. Nobody waits for this: only what has come already is joined.

Implements docs/protocol.md, clause 4.15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gapless.model.batch import EventBatch
from gapless.model.stream import Run
from gapless.protocol.marks import mark, reached
from gapless.protocol.messages import KnowledgeMessage

KNOWLEDGE_JOINED = mark("knowledge_joined", "messages of knowledge that came together were taken as one")


def joined(
    messages: Sequence[KnowledgeMessage], rows_max: int, is_news: Callable[[KnowledgeMessage], bool]
) -> list[KnowledgeMessage]:
    """The same knowledge in the same order, in as few messages as may be.

    Only first-time data that is news is joined: what is passed on for the first time, and what is not, is
    decided for a message as a whole.
    """
    groups: list[list[KnowledgeMessage]] = []
    rows = 0
    for message in messages:
        count = 0 if message.batch is None else len(message.batch)
        fits = groups and rows + count <= rows_max and _follows(groups[-1][-1], message)
        if fits and is_news(message) and (len(groups[-1]) > 1 or is_news(groups[-1][0])):
            groups[-1].append(message)
            rows += count
        else:
            groups.append([message])
            rows = count
    return [group[0] if len(group) == 1 else _one(group) for group in groups]


def _follows(before: KnowledgeMessage, after: KnowledgeMessage) -> bool:
    """Whether a message goes on behind another, of the same kind."""
    if before.pubend != after.pubend or not (before.first_time and after.first_time):
        return False
    if before.log != after.log:
        return False
    first, second = before.batch, after.batch
    if first is None or second is None or not (len(first) and len(second) and before.runs and after.runs):
        return False
    ascend = first.last < second.first and before.runs[-1][1] <= after.runs[0][0]
    return ascend and bool(first.schema.equals(second.schema))


def _one(group: list[KnowledgeMessage]) -> KnowledgeMessage:
    reached(KNOWLEDGE_JOINED)
    return KnowledgeMessage(
        pubend=group[0].pubend,
        runs=_united([run for message in group for run in message.runs]),
        batch=EventBatch.joined([message.batch for message in group if message.batch is not None]),
        first_time=True,
        final_before=max(message.final_before for message in group),
        log=group[0].log,
    )


def _united(runs: list[Run]) -> tuple[Run, ...]:
    """The same runs, those in one that touch and have the same stamp."""
    out = runs[:1]
    for start, stop, stamp in runs[1:]:
        if out[-1][1] == start and out[-1][2] == stamp:
            out[-1] = (out[-1][0], stop, stamp)
        else:
            out.append((start, stop, stamp))
    return tuple(out)
