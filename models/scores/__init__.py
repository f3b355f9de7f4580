"""How good captions are, measured against the references."""
