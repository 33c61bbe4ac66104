"""Milepost beside other engines on this machine: docs/benchmarks.md."""
