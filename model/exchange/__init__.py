"""Other programs' formats, and how well a model predicts a text."""
