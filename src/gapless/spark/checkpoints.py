"""What outlives the pipeline's process? For each stage, Spark's own checkpoint and the state rows.

```
<folder>/<stage>/spark/        Spark's: offsets, commits, state
<folder>/<stage>/rows/7.arrow  the state rows that batch 7 changed, and its horizon
<folder>/<stage>/rows/5.whole.arrow   all state rows as of batch 5; what is older is deleted
```

Both are *soft*: the log of the topics is the truth. If one is missing, damaged, or does not match the other,
both are deleted, and the stage is recomputed from the log. For the same reason nothing is synced to disk.

The rows of a batch are written before Spark commits it. So the newest file is of the last committed batch, or
of the one after, which Spark will repeat.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pyarrow as pa

from gapless.errors import PipelineError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import Tick
from gapless.views.registry import AsOf, as_of_text, parsed_as_of

#: After this many batches, or when they have more rows than are alive, all rows are rewritten.
BATCHES_MAX = 50
_AS_OF = b"gapless_as_of"
#: What Spark writes for a source without an offset yet.
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Restored:
    """What a stage had when the process ended."""

    #: Rows in the order in which they were written; later ones supersede earlier ones.
    rows: list[pa.Table]
    as_of: AsOf


class Checkpoint:
    """The files of one stage."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        """`schema` is that of the state rows; none are kept when it is empty."""
        self.folder = folder
        self.spark = folder / "spark"
        self._rows = folder / "rows"
        self._schema = schema
        self._batches = 0
        self._written = 0

    def drop(self) -> None:
        """Delete everything: the stage starts over."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._batches = self._written = 0

    def committed(self) -> int | None:
        """The last batch that Spark has committed."""
        return max(_numbers(self.spark / "commits"), default=None)

    def check_spark(self) -> None:
        """Raises PipelineError E503 when Spark could not continue from its files, or would go back."""
        known = {name: _numbers(self.spark / name) for name in ("offsets", "commits")}
        latest = {name: max(numbers, default=-1) for name, numbers in known.items()}
        if latest["offsets"] - latest["commits"] not in (0, 1):
            raise PipelineError("E503", f"{self.spark}: committed batches are missing")
        for name, numbers in known.items():
            for number in numbers:
                path = self.spark / name / str(number)
                try:
                    version, *lines = path.read_text(encoding="utf-8").splitlines()
                    whole = version.startswith("v") and bool(lines)
                    for line in lines:
                        if line != _NOTHING:
                            json.loads(line)
                    whole = whole and _has_its_checksum(path)
                except (OSError, ValueError):
                    whole = False
                if not whole:
                    raise PipelineError("E503", f"{path} is damaged")

    def restore(self) -> Restored | None:
        """The stored state; None for nothing. Raises PipelineError E503 when it cannot be used."""
        committed = self.committed()
        files = sorted(self._files(), key=_order)
        if committed is None and not files:
            if self.spark.exists():
                self.drop()  # Spark began and never finished a batch.
            return None
        self.check_spark()
        try:
            tables = [self._read(each) for each in files]
        except (OSError, pa.ArrowException, ValueError) as error:
            raise PipelineError("E503", f"{self._rows} cannot be read: {error}") from error
        start = max((at for at, each in enumerate(files) if _is_whole(each)), default=0)
        numbers = [_order(each)[0] for each in files[start:]]
        expected = list(range(numbers[0], numbers[0] + len(numbers))) if numbers else []
        begins = bool(numbers) and (numbers[0] == 0 or _is_whole(files[start]))
        if committed is None or numbers != expected or not begins or numbers[-1] - committed not in (0, 1):
            raise PipelineError("E503", f"{self.folder}: Spark's checkpoint and the state rows do not match")
        as_of = parsed_as_of(tables[-1].schema.metadata[_AS_OF].decode())
        return Restored([table.replace_schema_metadata(None) for table in tables[start:]], as_of)

    def _files(self) -> list[Path]:
        """The files named after a batch: other files are not ours."""
        return [each for each in self._rows.glob("*.arrow") if each.name.split(".", 1)[0].isdigit()]

    def _read(self, path: Path) -> pa.Table:
        with pa.ipc.open_file(path) as reader:
            table = reader.read_all()
        if not table.schema.equals(self._schema) or _AS_OF not in (table.schema.metadata or {}):
            raise ValueError(f"{path.name} has other columns")
        table.validate(full=True)
        return table

    def write(self, batch: int, rows: pa.Table, as_of: AsOf, alive: int) -> bool:
        """Store the rows that a batch changed. Returns whether it is time to rewrite all of them."""
        self._write(self._rows / f"{batch}.arrow", rows, as_of)
        self._batches += 1
        self._written += rows.num_rows
        return self._batches >= BATCHES_MAX or self._written > max(2 * alive, 100_000)

    def write_whole(self, batch: int, rows: pa.Table, as_of: AsOf) -> None:
        """Store all rows as of a batch, and delete older files."""
        self._write(self._rows / f"{batch}.whole.arrow", rows, as_of)
        for each in self._files():
            if _order(each) < (batch, 1):
                each.unlink(missing_ok=True)
        self._batches = self._written = 0

    def _write(self, path: Path, rows: pa.Table, as_of: AsOf) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = self._schema.with_metadata({_AS_OF: as_of_text(as_of).encode()})
        made = path.with_suffix(".part")
        with pa.OSFile(str(made), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_table(
                rows.select(self._schema.names).cast(self._schema).replace_schema_metadata(None)
            )
        made.replace(path)

    def as_of(self, batch: int, topics: Sequence[TopicId]) -> AsOf:
        """The horizon of a batch: where its sources end, for each of these topics in order."""
        lines = (self.spark / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[2:]
        assert len(lines) == len(topics), f"{len(lines)} sources for {topics}"
        found: dict[TopicId, dict[PubendId, Tick]] = {}
        silent = {topic for topic, line in zip(topics, lines, strict=True) if line == _NOTHING}
        for topic, line in zip(topics, lines, strict=True):
            known = found.setdefault(topic, {})
            if topic in silent:
                continue
            for pubend, tick in json.loads(line).items():
                # A topic that is read twice counts up to the lesser of the two.
                known[PubendId(pubend)] = min(tick, known.get(PubendId(pubend), tick))
        return found


def _has_its_checksum(path: Path) -> bool:
    """Whether a file is as Hadoop's checksum beside it says, or has none: Spark does not start otherwise."""
    beside = path.with_name(f".{path.name}.crc")
    if not beside.exists():
        return True
    # "crc", a zero, the size of a chunk, and the CRC-32 of each chunk.
    data, found = path.read_bytes(), beside.read_bytes()
    size = int.from_bytes(found[4:8])
    if found[:4] != b"crc\0" or not size:
        return False
    chunks = (data[at : at + size] for at in range(0, len(data), size))
    return found[8:] == b"".join(crc32(each).to_bytes(4) for each in chunks)


def _numbers(folder: Path) -> list[int]:
    return [int(each.name) for each in folder.iterdir() if each.name.isdigit()] if folder.is_dir() else []


def _order(path: Path) -> tuple[int, int]:
    """The batch of a file; the whole file of a batch sorts after its changes."""
    return int(path.name.split(".", 1)[0]), int(_is_whole(path))


def _is_whole(path: Path) -> bool:
    return path.name.endswith(".whole.arrow")
