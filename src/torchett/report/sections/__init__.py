"""Parts of the report of a job, each a function from values to what is printed."""
