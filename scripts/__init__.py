"""Thin command lines over the packages above."""
