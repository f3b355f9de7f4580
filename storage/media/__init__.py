"""Videos, pictures and sound: probing, reading, frame sampling, resizing, decoder processes."""
