"""Inputs that must be refused, by what is wrong with them."""
