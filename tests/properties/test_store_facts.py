"""What a database has seen of a log is there after any crash: comparing the two never gives a false alarm."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import hypothesis.strategies as st
from hypothesis import given

from gapless.errors import StoreError
from gapless.node.folder import LogFacts, contradiction, facts_of
from gapless.protocol.effects import ReleaseRecord, ReserveRecord
from gapless.store.log import Log, LogOptions
from tests.contracts.events import PUBEND, SCHEMA, batch
from tests.contracts.faulty import FaultyFiles, Killed, failing, killing

FOLDER = Path("/log")
OPTIONS = LogOptions(segment_bytes_max=600, free_bytes_min=0)

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "promise", "flush", "remember", "trim", "fail", "kill", "cut"]),
        st.integers(0, 30),
    ),
    max_size=40,
)


def opened(files: FaultyFiles) -> Log:
    return Log.open(FOLDER, PUBEND, SCHEMA, options=OPTIONS, files=files)


class _Story:
    def __init__(self) -> None:
        self.files = FaultyFiles()
        self.log = opened(self.files)
        self.token = self.tick = 0
        self.facts: LogFacts | None = None

    def act(self, action: str, number: int) -> None:
        match action:
            case "append":
                self.token, self.tick = self.token + 1, self.tick + 1 + number
                self.log.append(self.token, batch(self.tick))
            case "promise":
                self.token += 1
                released = self.log.recover().released
                records = (
                    ReserveRecord(before=self.tick + 9),
                    ReleaseRecord(before=max(released, self.tick - 20)),
                )
                self.log.append(self.token, records[number % 2])
            case "flush":
                self.log.flush()
            case "remember":
                self.facts = facts_of(self.log)
            case "trim":
                self.log.trim(self.log.recover().released, 0)
            case "fail":
                name = ("write", "sync", "create", "rename", "sync_folder", "truncate")[number % 6]
                self.files.hook = failing(
                    name, errno.ENOSPC if number > 15 else errno.EIO, times=1 + number % 2
                )
            case "kill":
                self.files.hook = killing(self.files.calls + 1 + number)
            case _:
                self.files.cut_power(Random(number))
                raise Killed


@given(ACTIONS)
def test_a_log_is_never_behind_its_note(actions: list[tuple[str, int]]) -> None:
    story = _Story()
    for action, number in [*actions, ("cut", 7)]:
        try:
            story.act(action, number)
        except (StoreError, Killed):
            story.files.restart_process()
            story.log, story.token = opened(story.files), 0
            assert contradiction(story.log, story.facts, 0) is None
            story.tick = max(story.tick, story.log.recover().next_tick)


@given(st.integers(1, 12), st.integers(0, 2_000))
def test_a_log_cut_below_its_note_is_behind(events: int, cut: int) -> None:
    files = FaultyFiles()
    log = opened(files)
    for tick in range(events):
        log.append(tick, batch(tick))
        log.flush()
    facts = facts_of(log)
    log.close()
    newest = max(path for path in files.names if path.suffix == ".segment")
    data = files.names[newest].data
    kept = facts.size - 1 - cut % 300
    del data[kept:]
    files.restart_process()
    try:
        log = opened(files)
    except StoreError as error:
        assert error.code == "E301"  # noqa: PT017  # the cut went into the header
    else:
        assert contradiction(log, facts, 0) is not None
