"""Small modules of PyTorch with differential attention, each as the authors of its architecture write it."""
