"""What is worth keeping: the contract of a policy, one module for each, and `registry.py`."""
