"""What ranks and whoever started them share: their jobs, progress, places and errors."""
