"""The programs in `examples/` run as they are, and their answers are right."""

import json
import subprocess
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from lxml import etree

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
DOCUMENTS = 300


def example(name: str) -> ModuleType:
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_the_top_ten_of_each_category_are_those_with_the_most_clicks(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    arguments = ["--documents", str(DOCUMENTS), "--rate", "1000", "--json"]
    # Spark takes seconds to start, and minutes where others need the processors, too.
    done = subprocess.run(
        [sys.executable, EXAMPLES / "news_top10.py", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    news = example("news_top10")
    clicks: dict[str, Counter[str]] = {category: Counter() for category in news.CATEGORIES}
    for document in news.documents(DOCUMENTS):
        story = etree.fromstring(document)
        clicks[story.get("category")][story.findtext("title")] += int(story.findtext("clicks"))
    assert json.loads(done.stdout) == [
        {"category": category, "title": title, "clicks": count}
        for category, counts in clicks.items()
        for title, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:10]
    ]
    assert all(len(counts) > 10 for counts in clicks.values()), "there is something to leave out"
