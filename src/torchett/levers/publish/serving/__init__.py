"""Loading and answering, with torch alone."""
