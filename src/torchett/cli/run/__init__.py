"""What `ett run` needs beside its options."""
