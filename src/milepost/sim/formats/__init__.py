"""Files that hold traces: one module for each format, and `registry.py`."""
