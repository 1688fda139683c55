"""Attention of one map as models have it: small modules, written here, that spell it as their authors do."""
