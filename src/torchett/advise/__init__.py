"""What each lever would win for a job, and how much of its time a job will train."""
