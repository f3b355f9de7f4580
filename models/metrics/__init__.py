"""Caption metrics, measured against the references."""
