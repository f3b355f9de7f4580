"""The terms of an objective: callables (model, batch) -> a scalar to make small."""
