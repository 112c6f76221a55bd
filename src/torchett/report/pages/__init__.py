"""Reports as HTML pages and pictures."""
