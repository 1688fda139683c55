"""Attention modules of other libraries, computed by the op: each file imports its library."""
