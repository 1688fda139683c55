"""Parts shared by the importers of PyTorch, of ONNX, and of JAX and StableHLO."""
