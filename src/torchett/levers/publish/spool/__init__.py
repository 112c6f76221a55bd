"""Jobs that wait to be published, and the workers that take them."""
