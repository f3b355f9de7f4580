"""The published captioners, a family a file: options and builders; `models.zoo` has the table."""
