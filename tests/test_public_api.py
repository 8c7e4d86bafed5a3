"""The public names of Gapless are pinned, and importing it costs next to nothing."""

import subprocess
import sys

import gapless
from gapless.client import connect
from gapless.embedding import embedded


def test_these_are_the_public_names() -> None:
    assert gapless.__all__ == ["__version__", "connect", "embedded", "sync"]
    assert gapless.connect is connect
    assert gapless.embedded is embedded
    assert gapless.sync.__all__ == ["Client", "connect", "embedded"]


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import gapless, sys; print([n for n in ('pyarrow', 'numpy', 'asyncio') if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
