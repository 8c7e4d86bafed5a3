"""How large may a value be that comes from outside? Types with bounds, which `msgspec` checks on decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta

from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.schema import COLUMNS_MAX
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick

#: Maximum length of any name: brokers, cells, pubends, topics, publishers, subscriptions.
NAME_CHARACTERS_MAX: Final = 256
#: Maximum length of an error message, a token or the version of a program.
TEXT_MAX: Final = 4_096
#: Maximum number of rows in one batch.
ROWS_MAX: Final = 2**20
#: Maximum number of pubends in one message.
SOURCES_MAX: Final = 2**16
#: Maximum number of rows granted at once.
CREDIT_ROWS_MAX: Final = 2**40

_NAME: Final = Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)
Name = Annotated[str, _NAME]
BrokerName = Annotated[BrokerId, _NAME]
PubendName = Annotated[PubendId, _NAME]
TopicName = Annotated[TopicId, _NAME]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
ErrorCode = Annotated[str, Meta(pattern="^E[1-9][0-9][0-9]$")]
TickNumber = Annotated[Tick, Meta(ge=TICK_MIN, le=TICK_MAX)]
#: Numbers that one side gives to requests, subscriptions and sources.
Number = Annotated[int, Meta(ge=0, le=2**32 - 1)]
#: Versions and catenation numbers: they count up from 0 and never reach the end.
Counter = Annotated[int, Meta(ge=0, le=2**62)]
#: A catenation number, or -1 for none.
CounterOrNone = Annotated[int, Meta(ge=-1, le=2**62)]
RowCount = Annotated[int, Meta(ge=0, le=ROWS_MAX)]
CreditRows = Annotated[int, Meta(ge=0, le=CREDIT_ROWS_MAX)]
ColumnTexts = Annotated[Mapping[Name, Name], Meta(min_length=1, max_length=COLUMNS_MAX)]
#: A tick per pubend.
TickPositions = Annotated[Mapping[PubendName, TickNumber], Meta(max_length=SOURCES_MAX)]
#: The id of a log per pubend.
LogNames = Annotated[Mapping[PubendName, Name], Meta(max_length=SOURCES_MAX)]
