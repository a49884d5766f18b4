"""What a person sees of a model: the pages, reports, pictures and tables."""
