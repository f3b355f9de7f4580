"""The published captioners, one paper per file or folder: options, encoder, decoder, builder. `models.zoo` has the table."""
