"""The policy lab: recorded traffic, replayed through the engine's own cache code without a model."""
