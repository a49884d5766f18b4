"""Thin command lines over model/ and data/."""
