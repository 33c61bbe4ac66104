"""python with_module.py MODULE.so INSTRUCTION_SET PYTEST_ARGUMENTS...

pytest with one compiled module in the place of the installed one, and no other instruction set.
"""

import importlib.util
import sys

import pytest
import torch  # noqa: F401  before the module, which shares its OpenMP runtime

import milepost
from milepost.ops.cpu import library

path, instruction_set, *arguments = sys.argv[1:]
name = f"_kernels_{instruction_set}"
spec = importlib.util.spec_from_file_location(f"milepost.{name}", path)
assert spec is not None
assert spec.loader is not None
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules[spec.name] = module
setattr(milepost, name, module)
library.available = lambda: (instruction_set,)
sys.exit(pytest.main(arguments))
