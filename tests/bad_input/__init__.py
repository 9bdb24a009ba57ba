"""What people and other programs may hand over by mistake or on purpose, and what they get."""
