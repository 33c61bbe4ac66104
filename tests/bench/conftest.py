"""The programs in `bench/` are not installed: they are imported from the repository's root."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
