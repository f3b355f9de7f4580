"""The Zarr feature store: writing, reading, maintenance, import, export and copies on S3."""
