"""Evaluation beyond the metrics: self-retrieval, near duplicates."""
