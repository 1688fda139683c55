"""Packs GPU kernels and models, checks and times them where a GPU is: docs/gpu-check.md."""
