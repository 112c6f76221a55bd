"""Run folders: records and interchange files read into histories, and written."""
