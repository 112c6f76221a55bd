"""The private APIs of torch that this lever uses, each behind a probe."""
