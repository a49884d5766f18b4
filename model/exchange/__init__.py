"""Converts models from and to the formats of other programs, and measures how well a model predicts text."""
