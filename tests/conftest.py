"""Tests run more threads than there may be cores: those that wait must sleep, not spin. Read once, as torch is loaded."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
