"""What must hold when something breaks: each row of docs/reliability.md has at least one test here."""
