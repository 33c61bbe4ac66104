"""The requirements of a vLLM wheel, without those that would replace the torch that it runs with."""

from __future__ import annotations

import sys
import zipfile
from email.parser import Parser

LEFT_OUT = ("torch", "opencv", "intel-openmp", "intel_openmp", "setuptools")


def main() -> None:
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist", [])
    for line in told:
        if "extra ==" not in line and not line.lower().startswith(LEFT_OUT):
            print(line)


if __name__ == "__main__":
    main()
