"""XA transactions: their rows are logged when they are prepared, and count from where the second phase commits them."""
