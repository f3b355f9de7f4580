"""Numpy, Arrow and Zarr only: everything Longtake keeps on disk. Knows nothing of models, tasks or flows."""
