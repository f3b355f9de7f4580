"""Files on disk: atomic writes, hashing, what is known of source files, garbage collection, sanitising."""
