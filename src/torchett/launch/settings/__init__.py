"""The settings of a job: levers with their switches, and every environment variable."""
