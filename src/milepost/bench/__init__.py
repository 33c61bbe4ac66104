"""Speed of this machine on models of known shapes with random weights."""
