"""What a rank notices of itself while it runs: missing memory, a standstill, which collective it calls."""
