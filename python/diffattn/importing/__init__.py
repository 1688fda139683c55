"""What the ways into the compiler share: those of PyTorch, of ONNX, and of JAX and StableHLO."""
