"""Files that hold traces: one module for each format, and `registry.py`."""

NAMES = ("milepost", "mooncake", "weka", "ragpulse")
"""Of the formats, for whoever only names them: reading brings numpy."""
