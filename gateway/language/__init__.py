"""What people read, in their language: English is the text in the code, Simplified Chinese stands in `zh.yml`."""
