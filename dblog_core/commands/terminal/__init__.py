"""What a person sees: tables of text, progress."""
