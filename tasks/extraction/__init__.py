"""Feature extraction: the engine, the extractors, their nets, shards and clusters."""
