"""What lies on storage: manifests, checksums, retention, other formats."""
