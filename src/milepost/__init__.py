"""Milepost: an inference engine for hybrid language models, with an exact prefix cache."""

__version__ = "0.1.0.dev0"
