"""Where do Spark's Python processes on the driver's machine find PySpark? Where it is installed.

Spark puts its archive `pyspark.zip` before everything else. Nothing in it is compiled, so each process would
compile a hundred modules before it answers, and Spark waits only ten seconds for the answer: too short on a
busy machine. The installed package is the same one, compiled once. Python imports this file, by its name, in
every process that has this folder in PYTHONPATH; `gapless.spark.session` sets that up.
"""

import sys
from importlib.machinery import PathFinder

_rest = [each for each in sys.path if not each.endswith(("pyspark.zip", "-src.zip"))]
if PathFinder.find_spec("pyspark", _rest) is not None and PathFinder.find_spec("py4j", _rest) is not None:
    sys.path[:] = _rest
