"""'longtake doctor --gpu-selftest': what a machine's GPUs compute, against its CPU, and how fast, in about two minutes."""
