"""One file per stage: read storage, compute with models, write storage, return an ArtifactRef."""
