"""`predict`: what a run would do on other numbers of ranks."""
