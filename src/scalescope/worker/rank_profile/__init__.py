"""What one rank's step consists of, part by part, gradient by gradient and unit by unit."""
