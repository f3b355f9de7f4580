"""Evaluation beyond the metrics: self-retrieval, attention masking, near duplicates."""
