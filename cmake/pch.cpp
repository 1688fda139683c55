// The owner of the precompiled header; it holds no code.
