"""Converts from and to other programs' formats, and measures how well a model predicts text."""
