"""Serving: paged caches, the engine that owns a model, and its server. docs/serving.md says what it promises."""
