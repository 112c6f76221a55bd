"""What torch does not promise to keep: its private APIs, each behind a probe."""
