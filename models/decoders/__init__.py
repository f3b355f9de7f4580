"""From a Memory to words: the decoders, one step at a time, and the searches that drive them."""
