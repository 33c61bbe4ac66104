"""One file for each engine: a program that its own interpreter runs. None but `milepost.py` may import milepost."""
