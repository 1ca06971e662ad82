"""Worked examples: a spec, a model with its recipe, a recorded log, each."""
