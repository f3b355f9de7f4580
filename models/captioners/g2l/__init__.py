"""G2L: joint clip-frame attention, Gumbel top-k key frames, region attention."""
