"""What would happen on another number of ranks: a timeline from one rank's profile and a collective curve."""
