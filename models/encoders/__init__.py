"""From a video's features to a decoder's Memory, and the ways a decoder reads it."""
