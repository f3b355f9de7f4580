"""What a sampled caption earns, of its sentence or of each of its words, and what that is compared with."""
